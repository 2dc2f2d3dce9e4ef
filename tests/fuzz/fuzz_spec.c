/* Any spec. Four words, each ended by a NUL: the name of a root, its directory, source and target
 * of a bind; then numbers.
 *
 * Properties: what spec_check accepts, a second reading of the rules accepts as well, and the other
 * way round; accepted specs survive the wire. */
#include "base/err.h"
#include "wire/msg.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static int in_range(uint64_t v, uint64_t min, uint64_t max)
{
    return v >= min && v <= max;
}

static int name_is_good(const char *name)
{
    return strlen(name) <= SPEC_NAME_MAX && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == strlen(name);
}

/* By resolving it, instead of looking at its components. */
static int target_is_good(const char *target)
{
    char flat[SPEC_PATH_MAX + 3];
    size_t n = 0;
    if (target[0] != '/' || strlen(target) > SPEC_PATH_MAX)
        return 0;
    for (const char *p = target; *p; p++) /* one slash for each row of them, and one at the end */
        if (*p != '/' || n == 0 || flat[n - 1] != '/')
            flat[n++] = *p;
    if (flat[n - 1] != '/')
        flat[n++] = '/';
    flat[n] = 0;

    return strcmp(flat, "/") != 0 && !strstr(flat, "/./") && !strstr(flat, "/../") &&
           strncmp(flat, "/proc/", 6) != 0 && strncmp(flat, "/sys/", 5) != 0 &&
           strncmp(flat, "/dev/", 5) != 0;
}

static int image_is_good(const char *image)
{
    if (strlen(image) > SPEC_IMAGE_MAX || image[0] == '-')
        return 0;
    for (const char *p = image; *p; p++)
        if (*p < 0x21 || *p > 0x7e)
            return 0;

    /* The files of other sandboxes: their repositories' last part begins so. */
    const char *last = image;
    for (const char *p = image; *p && *p != '@'; p++)
        if (*p == '/')
            last = p + 1;
    return strncasecmp(last, SPEC_ROOT_IMAGES, strlen(SPEC_ROOT_IMAGES)) != 0;
}

static int options_are_good(const char *options)
{
    size_t len = strlen(options);
    return !len || (len <= SPEC_OPTIONS_MAX && options[0] == '{' && options[len - 1] == '}');
}

static int spec_is_good(const struct spec *s)
{
    const struct limits *l = &s->limits;
    if (!in_range(l->memory, SPEC_MEMORY_MIN, SPEC_MEMORY_MAX) ||
        !in_range(l->pids, SPEC_PIDS_MIN, SPEC_PIDS_MAX) ||
        !in_range(l->cpu_milli, SPEC_CPU_MIN, SPEC_CPU_MAX) ||
        !in_range(l->disk, SPEC_DISK_MIN, SPEC_DISK_MAX) ||
        !in_range(l->files, SPEC_FILES_MIN, SPEC_FILES_MAX))
        return 0;

    if (s->root_name[0] && !name_is_good(s->root_name))
        return 0;
    if (s->root_dir[0] && (s->root_dir[0] != '/' || strlen(s->root_dir) > SPEC_PATH_MAX))
        return 0;
    if (!image_is_good(s->image) || !options_are_good(s->options))
        return 0;

    return !s->bind_count ||
           (s->binds[0].source[0] == '/' && strlen(s->binds[0].source) <= SPEC_PATH_MAX &&
            target_is_good(s->binds[0].target));
}

static void check(const struct spec *s)
{
    struct pd_err e = {.msg = ""};
    int r = spec_check(s, &e);
    require((r == 0) == spec_is_good(s));
    if (r < 0) {
        require(r == -1 && (e.code == PD_INVALID || e.code == PD_DENIED) && e.msg[0] &&
                memchr(e.msg, 0, sizeof e.msg));
        return;
    }

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_create m = {.spec = *s}, back;
    msg_create_encode(&out, &m);
    require(!out.overflow && msg_create_decode(&out, &back, &e) == 0);
    require(spec_check(&back.spec, &e) == 0 && spec_is_good(&back.spec));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 4);
    if (!text)
        return 0;
    memcpy(text, data, size);
    memset(text + size, 0, 4);

    const char *words[4];
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        words[i] = text + at;
        at += strlen(words[i]) + (at + strlen(words[i]) < size + 3);
    }

    struct spec s = SPEC_DEFAULT;
    check(&s);
    s.root_name = words[0];
    s.root_dir = words[1];
    check(&s);

    s.image = words[0];
    s.options = words[2];
    check(&s);

    s.image = s.options = "";
    s.bind_count = 1;
    s.binds[0] = (struct spec_bind){"/srv", words[3], 0};
    check(&s);
    s.binds[0].source = words[2];
    check(&s);

    /* What is left, as limits. */
    for (int i = 0; at + 8 <= size && i < 5; i++, at += 8) {
        uint64_t *fields[] = {&s.limits.memory, &s.limits.pids, &s.limits.cpu_milli, &s.limits.disk,
                              &s.limits.files};
        memcpy(fields[i], data + at, 8);
        check(&s);
    }
    free(text);
    return 0;
}
