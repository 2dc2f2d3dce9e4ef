/* What backends share: names, the words of paddock-box, files, and what no box elsewhere has. A
 * name keeps the sandbox's own where that fits into a DNS label; else it is a digest of it, so that
 * two sandboxes never share one. */
#include "engine/remote.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "wire/start.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DIGEST_DIGITS 20u /* with instances of 31 characters it still fits */

bool remote_is_wanted(void *remote)
{
    const struct remote *r = remote;
    return !r->is_wanted || r->is_wanted(r->wanted_context);
}

static bool fits_label(const char *box, size_t room)
{
    size_t len = strspn(box, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return len > 0 && !box[len] && len <= room && box[len - 1] != '-';
}

void remote_name(const char *instance, const char *box, char out[REMOTE_NAME_MAX + 1])
{
    int n = snprintf(out, REMOTE_NAME_MAX + 1, "paddock-%.31s-", instance);
    size_t at = (size_t)n;

    /* The letter keeps a digest apart from a sandbox that is called like one. */
    if (fits_label(box, REMOTE_NAME_MAX - at) && strncmp(box, "x-", 2) != 0) {
        snprintf(out + at, REMOTE_NAME_MAX + 1 - at, "%s", box);
        return;
    }

    char digest[SHA256_HEX_SIZE];
    sha256_hex(box, strlen(box), digest);
    snprintf(out + at, REMOTE_NAME_MAX + 1 - at, "x-%.*s", (int)DIGEST_DIGITS, digest);
}

void remote_run_words(const struct remote_plan *p, const char *key, struct remote_words *ret)
{
    *ret = (struct remote_words){.count = 3};
    snprintf(ret->text[0], sizeof ret->text[0], "key=%s", key);
    snprintf(ret->text[1], sizeof ret->text[1], "box=%s", p->link);
    snprintf(ret->text[2], sizeof ret->text[2], "lease=%u", (unsigned)p->lease);
    if (p->spec->profile == PROFILE_DEV)
        snprintf(ret->text[ret->count++], sizeof ret->text[3], "profile=%s", INIT_ARG_DEV);
}

int remote_read_program(int fd, struct buf *out, struct pd_err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        st.st_size > (off_t)REMOTE_PROGRAM)
        return pd_fail(e, PD_INTERNAL, "descriptor %d of a broker is not the program paddock-box",
                       fd);
    uint8_t *at = buf_reserve(out, (size_t)st.st_size);
    if (!at)
        return pd_fail(e, PD_CAPACITY, "no memory for paddock-box");

    size_t have = 0;
    while (have < (size_t)st.st_size) {
        ssize_t n = pread(fd, at + have, (size_t)st.st_size - have, (off_t)have);
        if (n <= 0)
            return pd_fail_sys(e, "read paddock-box");
        have += (size_t)n;
    }
    out->len += have;
    return 0;
}

int remote_read_file(const char *what, const char *path, struct buf *out, struct pd_err *e)
{
    struct stat st;
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return pd_fail(e, PD_INVALID, "%s: %.120s cannot be read: %s", what, path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size > out->max)
        return pd_fail(e, PD_INVALID, "%s: %.120s is no file of at most %zu bytes", what, path,
                       out->max);

    for (;;) {
        uint8_t piece[4096];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0)
            return pd_fail(e, PD_INVALID, "%s: %.120s cannot be read: %s", what, path,
                           strerror(errno));
        if (n == 0)
            break;
        int r = buf_put(out, piece, (size_t)n);
        explicit_bzero(piece, sizeof piece);
        if (r < 0)
            return pd_fail(e, PD_INVALID, "%s: %.120s has more than %zu bytes", what, path,
                           out->max);
    }
    while (out->len && (out->data[out->len - 1] == '\n' || out->data[out->len - 1] == '\r'))
        out->len--;
    return 0;
}

int remote_check_spec(const struct remote_kind *k, const struct spec *s, struct pd_err *e)
{
    if (k->needs_image && !s->image[0])
        return pd_fail(e, PD_INVALID,
                       "provider %s needs an image, such as \"image\": \"debian:12\", or a setting "
                       "default_image of the server",
                       k->name);

    if (s->min_rung > k->rung)
        return pd_fail(e, PD_ISOLATION, "provider %s gives '%s', '%s' was asked for", k->name,
                       rung_name(k->rung), rung_name(s->min_rung));
    if (s->profile != PROFILE_STRICT && s->profile != PROFILE_DEV)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s has no profile '%s': use strict, or provider jail", k->name,
                       profile_name(s->profile));
    if (s->network != NETWORK_NONE)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s has no network '%s': use none, or provider jail", k->name,
                       network_name(s->network));

    if (s->bind_count || s->root_dir[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s shows no files of this machine ('%.80s'): put them into the "
                       "image, or upload them",
                       k->name, s->root_dir[0] ? s->root_dir : s->binds[0].source);
    if (s->root_name[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s keeps no files beyond the sandbox (root '%.60s')", k->name,
                       s->root_name);
    return 0;
}
