/* Any bytes as a Dockerfile.
 *
 * Properties: a refusal has a text; what is taken has an image, and steps of known types whose
 * words are strings, those of COPY with sources; and a server takes each step, or says why not. */
#include "base/err.h"
#include "client/dockerfile.h"
#include "wire/msg.h"

#include "build/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_step(struct build_plan *p, const json_t *step)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const char *type = json_string_value(json_object_get(step, "type"));
    const json_t *sources = json_object_get(step, "sources"), *word;
    struct msg_list_writer args = MSG_LIST_WRITER_INIT;
    struct pd_err e = {.msg = ""};
    size_t i;

    require(type && json_is_array(json_object_get(step, "args")));
    require(!strcmp(type, "COPY") == (sources && json_array_size(sources) > 0));
    json_array_foreach(json_object_get(step, "args"), i, word)
    {
        require(json_is_string(word));
        if (msg_list_add(&args, i || !sources ? json_string_value(word) : "a") < 0)
            break;
    }
    struct msg_list list = msg_list_of(&args);
    unsigned before = p->count;
    int r = plan_add_step(p, type, &list, sources ? hash : NULL, 0, &e);
    require(r == 0 ? p->count == before + 1 : p->count == before && e.msg[0]);
    msg_list_writer_done(&args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_err e = {.msg = ""};
    char *exact = malloc(size ? size : 1), path[SPEC_PATH_MAX];
    struct build_plan *p = plan_new();
    if (!exact || !p)
        abort();

    memcpy(exact, data, size);
    json_t *body = dockerfile_read(exact, size, &e), *step;
    size_t i;
    if (body) {
        require(json_is_string(json_object_get(body, "image")));
        json_array_foreach(json_object_get(body, "steps"), i, step) check_step(p, step);
    } else {
        require(e.msg[0] && memchr(e.msg, 0, sizeof e.msg));
    }
    json_decref(body);

    /* The same bytes as a path: what comes of it is absolute and leads nowhere else. */
    char *text = realloc(exact, size + 1);
    text[size] = 0;
    if (plan_path("/a/b", text, path, &e) == 0)
        require(path[0] == '/' && !strstr(path, "/../") && !strstr(path, "//"));
    if (plan_source(text, path, &e) == 0)
        require(path[0] != '/' && strcmp(path, "..") != 0 && strncmp(path, "../", 3) != 0);
    free(text);
    plan_free(p);
    return 0;
}
