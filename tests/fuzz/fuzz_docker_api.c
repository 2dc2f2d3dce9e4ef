/* Answers of an engine and names of images: no bytes break a reader, and what is read is clean. */
#include "base/err.h"
#include "engine/docker_api.h"
#include "wire/image_pattern.h"
#include "wire/image_ref.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int each(void *context, const struct docker_container *c, struct pd_err *e)
{
    (void)context, (void)e;
    if (strspn(c->id, "0123456789abcdef") != strlen(c->id))
        abort();
    return 0;
}

/* A pattern that was read takes an image or not, whatever both are. */
static void pattern(const char *text, const struct image_ref *r)
{
    struct image_pattern p;
    if (image_pattern_parse(text, &p, NULL) == 0)
        (void)image_pattern_matches(&p, r);
}

/* A name that was read reads the same again when it is written out, and is meant by the pattern of
 * its own name, by that of its registry, and by none of another registry. */
static void image(const char *text)
{
    struct image_ref a, b;
    char full[IMAGE_TEXT_MAX], again[IMAGE_TEXT_MAX];

    if (image_ref_parse(text, &a, NULL) < 0)
        return;
    image_ref_text(&a, full);
    if (image_ref_parse(full, &b, NULL) < 0)
        abort();
    image_ref_text(&b, again);
    if (strcmp(full, again) != 0)
        abort();

    struct image_pattern p;
    char name[IMAGE_NAME_MAX], own[IMAGE_NAME_MAX];
    image_ref_name(&a, name);
    snprintf(own, sizeof own, "%s/*", a.registry);
    if (image_pattern_parse(name, &p, NULL) < 0 || !image_pattern_matches(&p, &a) ||
        image_pattern_parse(own, &p, NULL) < 0 || !image_pattern_matches(&p, &a))
        abort();
    if (image_pattern_parse("other.example:1/*", &p, NULL) < 0 ||
        (image_pattern_matches(&p, &a) && strcmp(a.registry, "other.example:1") != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct docker_container c;
    struct docker_info i;
    char version[16], id[80];
    auto_buf auth = BUF_INIT(65536), text = BUF_INIT(1 << 20);

    (void)docker_read_image_id(data, size, id, sizeof id, NULL);
    (void)docker_read_layers(data, size, NULL);
    if (docker_read_container(data, size, &c, NULL) == 0)
        each(NULL, &c, NULL);
    (void)docker_read_list(data, size, each, NULL, NULL);
    (void)docker_read_version(data, size, version, NULL);
    if (docker_read_info(data, size, "runc", &i, NULL) == 0) {
        bool held = docker_check_limits("podman", &i, NULL) == 0;
        if (docker_read_controllers(data, size, &i, NULL) == 0 && !held &&
            docker_check_limits("podman", &i, NULL) == 0)
            abort();
    }
    (void)docker_read_auth(data, size, "r.io", &auth, NULL);

    struct pd_err e;
    (void)docker_fail(500, data, size, "fuzz", &e);
    if (strpbrk(e.msg, "\n\r\x1b"))
        abort();

    struct docker_pull p = DOCKER_PULL_INIT;
    if (docker_pull_take(&p, data, size / 2, NULL) == 0)
        (void)docker_pull_take(&p, data + size / 2, size - size / 2, NULL);
    struct msg_progress far = docker_pull_progress(&p);
    if (far.layers_done > far.layers || far.bytes_done > far.bytes)
        abort();
    docker_pull_done(&p);

    if (buf_put(&text, data, size) == 0 && buf_cstr(&text))
        image(buf_cstr(&text));

    struct image_ref some = {.registry = "docker.io", .repository = "library/debian"};
    if (buf_cstr(&text))
        pattern(buf_cstr(&text), &some);
    return 0;
}
