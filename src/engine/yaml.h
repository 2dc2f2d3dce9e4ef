/* yaml: the part of YAML that configuration files of Kubernetes are written in, as a tree of
 * jansson's. Pure.
 *
 * Mappings and lists by indentation, plain and quoted scalars on one line, `|` blocks, empty `{}`
 * and `[]`, JSON on one line, comments, one document. A text that begins with '{' is JSON. What is
 * beyond (anchors, tags, several documents, scalars over several lines) is an error and never
 * guessed at. All scalars are strings but null, true and false. */
#pragma once

#include <stddef.h>

struct json_t;
struct pd_err;

#define YAML_MAX   (1u << 20)
#define YAML_DEPTH 16u

/* A new reference, or NULL: PD_INVALID names the line and no text of it, which may be secret. */
struct json_t *yaml_read(const char *text, size_t len, struct pd_err *e);
