/* SPDX-License-Identifier: MIT */
#include "api/answer_defaults.h"

#include "base/log.h"
#include "model/sampler.h"

static void fill_sampling(weft_sampling *s, const weft_sampling *from) {
  if (s->temperature < 0.0f) s->temperature = from->temperature;
  if (s->top_k < 0) s->top_k = from->top_k;
  if (s->top_p < 0.0f) s->top_p = from->top_p;
}

static void fill_entropy_bound(weft_entropy_bound *e, const weft_entropy_bound *from) {
  if (e->max_steps == 0) e->max_steps = from->max_steps;
  if (e->stability < 0) e->stability = from->stability;
  if (e->t_min < 0.0f) e->t_min = from->t_min;
  if (e->t_max < 0.0f) e->t_max = from->t_max;
  if (e->entropy_bound < 0.0f) e->entropy_bound = from->entropy_bound;
  if (e->confidence < 0.0f) e->confidence = from->confidence;
  if (!e->self_conditioning) e->no_self_conditioning = e->no_self_conditioning || from->no_self_conditioning;
}

/* Values that are not finite pass the comparisons above; the checks refuse them. */
weft_status answer_defaults_open(const weft_open_options *options, weft_served_model *model, weft_error *error) {
  const weft_model_info *info = weft_model_get_info(model->model);
  const weft_sampling of_file = {.temperature = info->temperature,
                                 .top_k = (int32_t)info->top_k,
                                 .top_p = info->top_p,
                                 .repetition_penalty = 1.0f};
  model->sampling = of_file;
  model->entropy_bound = info->entropy_bound;
  if (options->sampling != NULL) {
    model->sampling.temperature = options->sampling->temperature;
    model->sampling.top_k = options->sampling->top_k;
    model->sampling.top_p = options->sampling->top_p;
    fill_sampling(&model->sampling, &of_file);
  }
  if (options->entropy_bound != NULL) {
    model->entropy_bound = *options->entropy_bound;
    fill_entropy_bound(&model->entropy_bound, &info->entropy_bound);
  }
  weft_error why = {{0}};
  weft_status status = weft_sampling_check(&model->sampling, info->n_vocab, &why);
  if (status == WEFT_OK && info->canvas_length > 0) status = weft_entropy_bound_check(&model->entropy_bound, &why);
  if (status == WEFT_OK) return WEFT_OK;
  return weft_fail(error, status, "what requests of %s get that leave it open: %s", model->name, why.text);
}

void answer_defaults_fill(const weft_served_model *model, weft_sampling *sampling, weft_entropy_bound *entropy_bound) {
  fill_sampling(sampling, &model->sampling);
  fill_entropy_bound(entropy_bound, &model->entropy_bound);
}

void answer_defaults_print(const weft_served_model *model, weft_text *out) {
  const weft_sampling *s = &model->sampling;
  const weft_entropy_bound *e = &model->entropy_bound;
  weft_text_printf(out, "  answers  temperature %g, top_k %d, top_p %g", (double)s->temperature, s->top_k,
                   (double)s->top_p);
  if (weft_model_get_info(model->model)->canvas_length > 0) {
    weft_text_printf(
        out, "; canvases of at most %u steps, temperatures %g to %g, entropy bound %g, stability %d, confidence %g",
        e->max_steps, (double)e->t_max, (double)e->t_min, (double)e->entropy_bound, e->stability,
        (double)e->confidence);
    if (e->no_self_conditioning) weft_text_puts(out, ", no self-conditioning");
  }
  weft_text_puts(out, ", where a request names nothing else\n");
}

void answer_defaults_tell_unused(const weft_runtime *rt) {
  const weft_entropy_bound *e = rt->options.entropy_bound;
  bool given = e != NULL && (e->max_steps > 0 || e->stability >= 0 || e->t_min >= 0.0f || e->t_max >= 0.0f ||
                             e->entropy_bound >= 0.0f || e->confidence >= 0.0f || e->no_self_conditioning);
  for (uint32_t i = 0; i < rt->n_models && given; i++) {
    given = weft_model_get_info(rt->model[i].model)->canvas_length == 0;
  }
  if (given)
    weft_log(WEFT_LOG_WARN,
             "defaults of diffusion are given, and no model here writes by diffusion: they are not used");
}
