/* SPDX-License-Identifier: MIT */
/* What people and programs are told of each route: in /openapi.json and at /docs.
 *
 * Law: every row of the router's table has a note, but for the files of the page, and every note is of a route
 * (http/api_openapi holds both). The fields of bodies are those of the tables by which bodies are read. */
#ifndef WEFT_API_SERVER_ROUTE_NOTES_H
#define WEFT_API_SERVER_ROUTE_NOTES_H

#include "api/dialects/field_tables.h"
#include "api/server/router.h"

typedef struct route_note {
  const char *method, *path; /* as in the router */
  const char *topic;         /* heading under which the route stands */
  const char *what;          /* one line */
  const field_table *body;   /* NULL: it has none, or one without a table */
  const char *type;          /* media type of the answer */
} route_note;

extern const route_note route_notes[];
extern const uint32_t n_route_notes;

/* The note of a route; NULL: it has none. */
const route_note *route_note_of(const weft_endpoint *route);
/* Appends the path as a template: "/v1/models/{name}" for "/v1/models/" and a star. */
void route_put_path(const char *path, weft_text *out);
/* The table of the object, or of the items of the list, that a field of the table holds; NULL: none is known. *is_list:
 * the field is a list of such objects. */
const field_table *route_inner_table(const field_table *table, const char *field, bool *is_list);
/* Appends the name of a table's schema: letters, digits and _. */
void route_put_schema_name(const field_table *table, weft_text *out);

#endif
