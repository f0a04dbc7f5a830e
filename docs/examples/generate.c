/* SPDX-License-Identifier: MIT */
/* cc generate.c $(pkg-config --cflags --libs weft) && ./a.out model.gguf "Write 4711 backwards." */
#include <stdio.h>
#include <weft.h>

int main(int argc, char **argv) {
  char error[512] = "usage: generate MODEL.gguf PROMPT";
  weft_runtime *runtime = NULL;
  weft_generation *generation = NULL;
  weft_delta delta = {0};
  const char *model = argc == 3 ? argv[1] : NULL;
  weft_open_options options = {.models = &model, .n_models = 1};
  if (model == NULL || weft_open(&options, &runtime, error, sizeof error) != 0) goto out;
  weft_generate_params params;
  weft_generate_defaults(&params);
  weft_chat_turn turn = {.role = "user", .content = argv[2]};
  params.prompt.turns = &turn;
  params.prompt.n_turns = 1;
  if (weft_submit(runtime, &params, &generation, error, sizeof error) != 0) goto out;
  error[0] = 0;
  while (delta.kind != WEFT_DELTA_END && weft_next(generation, 60000, &delta) == 0) {
    if (delta.kind == WEFT_DELTA_TEXT) fwrite(delta.text, 1, delta.n_text, stdout);
  }
  printf("\n[%s after %u tokens]\n", delta.finish, delta.usage.completion_tokens);
out:
  weft_generation_free(generation);
  weft_close(runtime);
  if (error[0] != 0) fprintf(stderr, "generate: %s\n", error);
  return error[0] != 0;
}
