/* Reads the tar around an image: headers are read by init's reader of archives, contents are passed
 * over. Of two members with the same name the later one counts, as when it were unpacked. */
#include "image/archive.h"

#include "base/banned.h"
#include "base/err.h"
#include "image/manifest.h"
#include "init/tar.h"

#include <stdlib.h>
#include <string.h>

struct reading {
    FILE *from;
    uint64_t at;
    struct tar_reader tar;
};

void archive_done(struct archive *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        free(a->members[i].name);
        free(a->members[i].link);
        free(a->members[i].text);
    }
    free(a->members);
    *a = ARCHIVE_EMPTY;
}

static int take(struct reading *r, void *out, size_t len, struct pd_err *e)
{
    if (fread(out, 1, len, r->from) != len)
        return pd_fail(e, PD_INVALID, "the file ends too early: it was cut off");
    r->at += len;
    return 0;
}

static int skip(struct reading *r, uint64_t len, struct pd_err *e)
{
    static char bytes[64u << 10];

    while (len) {
        size_t part = len < sizeof bytes ? (size_t)len : sizeof bytes;
        if (take(r, bytes, part, e) < 0)
            return -1;
        len -= part;
    }
    return 0;
}

static const char *plain_name(const char *name)
{
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    return name;
}

/* Which member a link means. Old versions of docker write a layer once, and links to it as
 * "../OTHER/layer.tar". */
static char *link_target(const struct tar_entry *t)
{
    char name[2 * MANIFEST_PATH_MAX + 2];
    const char *from = plain_name(t->path), *slash = strrchr(from, '/');
    int n;

    if (t->type == TAR_HARDLINK || !slash)
        n = snprintf(name, sizeof name, "%s", plain_name(t->link));
    else if (!strncmp(t->link, "../", 3) && memchr(from, '/', (size_t)(slash - from)) == NULL)
        n = snprintf(name, sizeof name, "%s", t->link + 3);
    else
        n = snprintf(name, sizeof name, "%.*s/%s", (int)(slash - from), from, t->link);
    return n > 0 && (size_t)n < sizeof name ? strdup(name) : NULL;
}

/* The first bytes, and the rest as well if it may be a text that is wanted. */
static int take_contents(struct reading *r, struct archive *a, struct archive_member *m,
                         struct pd_err *e)
{
    size_t start = m->size < sizeof m->start ? (size_t)m->size : sizeof m->start;
    if (take(r, m->start, start, e) < 0)
        return -1;

    uint64_t rest = m->size - start;
    if ((m->start[0] == '{' || m->start[0] == '[') && m->size <= MANIFEST_TEXT_MAX &&
        a->texts + m->size <= ARCHIVE_TEXTS_MAX) {
        m->text = malloc((size_t)m->size + 1);
        if (!m->text)
            return pd_fail(e, PD_CAPACITY, "out of memory");

        memcpy(m->text, m->start, start);
        if (take(r, m->text + start, (size_t)rest, e) < 0)
            return -1;
        a->texts += m->size;
        rest = 0;
    }
    return skip(r, rest + tar_padding(m->size), e);
}

static int take_member(struct reading *r, struct archive *a, struct pd_err *e)
{
    const struct tar_entry *t = &r->tar.entry;
    const char *name = plain_name(t->path);
    bool is_link = t->type == TAR_SYMLINK || t->type == TAR_HARDLINK;

    if ((t->type != TAR_FILE && !is_link) || strlen(name) > MANIFEST_PATH_MAX)
        return skip(r, t->size + tar_padding(t->size), e);
    if (a->count == ARCHIVE_MEMBERS_MAX)
        return pd_fail(e, PD_TOO_LARGE, "the file has more than %u members: it is no image",
                       ARCHIVE_MEMBERS_MAX);
    if ((a->count & (a->count - 1)) == 0) {
        size_t room = a->count ? 2 * (size_t)a->count : 1;
        struct archive_member *more = realloc(a->members, room * sizeof *more);
        if (!more)
            return pd_fail(e, PD_CAPACITY, "out of memory");
        a->members = more;
    }

    struct archive_member *m = &a->members[a->count++];
    *m = (struct archive_member){.name = strdup(name), .offset = r->at, .size = t->size};
    if (is_link)
        m->link = link_target(t);
    if (!m->name || (is_link && !m->link))
        return pd_fail(e, PD_CAPACITY, "out of memory");
    return take_contents(r, a, m, e);
}

static int take_meta(struct reading *r, struct pd_err *e)
{
    size_t len = (size_t)r->tar.meta_size;
    auto_buf data = BUF_INIT(TAR_META_MAX + 1);
    uint8_t *to = buf_reserve(&data, len + 1);

    if (!to)
        return pd_fail(e, PD_CAPACITY, "out of memory");
    if (take(r, to, len, e) < 0 || tar_meta(&r->tar, to, len, e) < 0)
        return -1;
    return skip(r, tar_padding(len), e);
}

static int check_start(const uint8_t block[TAR_BLOCK], struct pd_err *e)
{
    if (block[0] == 0x1f && block[1] == 0x8b)
        return pd_fail(e, PD_INVALID, "the file is packed with gzip: unpack it first, by gunzip");
    if (!memcmp(block, "\x28\xb5\x2f\xfd", 4))
        return pd_fail(e, PD_INVALID, "the file is packed with zstd: unpack it first, by zstd -d");
    return 0;
}

static int read_all(struct reading *r, struct archive *a, struct pd_err *e)
{
    uint8_t block[TAR_BLOCK];

    for (int first = 1;; first = 0) {
        if (take(r, block, sizeof block, e) < 0 || (first && check_start(block, e) < 0))
            return -1;

        int step = tar_header(&r->tar, block, e);
        if (step == TAR_END)
            return 0;
        if (step < 0 || (step == TAR_META ? take_meta(r, e) : take_member(r, a, e)) < 0)
            return -1;
    }
}

int archive_read(FILE *from, struct archive *ret, struct pd_err *e)
{
    struct reading r = {.from = from, .tar = TAR_READER_INIT};
    auto_archive a = ARCHIVE_EMPTY;

    int failed = read_all(&r, &a, e);
    tar_reader_done(&r.tar);
    if (failed)
        return -1;
    *ret = a;
    a = ARCHIVE_EMPTY;
    return 0;
}

static const struct archive_member *find(const struct archive *a, const char *name)
{
    for (uint32_t i = a->count; i-- > 0;)
        if (!strcmp(a->members[i].name, name))
            return &a->members[i];
    return NULL;
}

const struct archive_member *archive_find(const struct archive *a, const char *name)
{
    const struct archive_member *m = find(a, plain_name(name));
    return m && m->link ? find(a, m->link) : m;
}
