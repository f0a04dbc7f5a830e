/* SPDX-License-Identifier: MIT */
/* Filters over lists and mappings; private to model/jinja*.c.
 *
 * Law: a filter takes the arguments that jinja2's filter of the same name takes, and gives the same result. */
#ifndef WEFT_MODEL_TEXT_JINJA_FILTERS_H
#define WEFT_MODEL_TEXT_JINJA_FILTERS_H

#include "model/text/jinja_internal.h"

jinja_value jinja_filter_dictsort(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_first(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_items(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_join(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_last(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_map(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_max(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_min(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_reject(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_rejectattr(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_reverse(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_select(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_selectattr(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_sort(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_sum(jinja_run *run, jinja_value self, const jinja_args *args);
jinja_value jinja_filter_unique(jinja_run *run, jinja_value self, const jinja_args *args);

#endif
