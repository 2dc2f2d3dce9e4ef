/* context_json: what executions and contexts are for clients, as JSON. Pure but for the time of
 * day. All of it is ASCII: some clients decode every piece of the network by itself, and some end
 * lines at more characters than a newline. */
#pragma once

#include "core/context.h"

struct buf;
struct json;

/* Two forms of the same lines: this project's own, and that of E2B's code interpreter. */
enum execution_form { FORM_OWN, FORM_E2B };

/* The object of a piece of news, without a newline; nothing for news that are no line (NEWS_BEGUN,
 * NEWS_LEFT; of NEWS_END in E2B's form the last line). */
void execution_line(const struct execution_follow *f, enum execution_news news,
                    enum execution_form form, struct buf *out);
/* The name of the line, such as `stdout`; NULL when there is none. Of FORM_OWN. */
const char *execution_line_type(const struct execution_follow *f, enum execution_news news);

/* The fields of a result, in the object that is open. */
void result_fields(struct json *j, const struct context_event *v);
/* name, value and traceback, in the object that is open. */
void error_fields(struct json *j, const struct context_event *v);
/* The same of an execution whose process has ended. */
void died_fields(struct json *j, const struct execution_follow *f);
/* A context, as an object. */
void context_json(struct json *j, const struct context_info *i);
