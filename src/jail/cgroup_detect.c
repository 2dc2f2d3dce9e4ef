/* Finds the cgroup layout in the text of the mount table.
 *
 * One pass over the mount table, one candidate kept per tree. A line of it reads
 *
 *   id parent major:minor root mount-point options [optional ...] - type source super-options
 *
 * where blanks and backslashes inside a field are written as \ooo. A v1 tree is known by the
 * controllers among its super-options, in any order; a name= alone makes no tree that is of use.
 * The same tree may be mounted many times (bind mounts, containers' roots), so candidates are
 * ranked. Nothing is allocated and no line is copied: its length does not matter. */
#include "jail/cgroup.h"

#include "base/banned.h"

enum { RANK_HOME = 1, RANK_WHOLE = 2, RANK_WRITABLE = 4 };

struct candidate {
    int rank; /* 0: none; the rest is then unset */
    uint64_t id;
    char root[256]; /* which directory of the tree is mounted */
    char path[256]; /* where */
};

struct span {
    const char *at;
    size_t len;
};

/* The keeper's own leaf on v2 (see cgroup_host.c); what is started from there belongs above it. */
#define LEAF "/" CGROUP_LEAF

static const char *const controller_of_tree[CGROUP_TREE_COUNT] = {
    [CGROUP_TREE_MEMORY] = "memory",
    [CGROUP_TREE_PIDS] = "pids",
    [CGROUP_TREE_CPU] = "cpu",
    [CGROUP_TREE_FREEZER] = "freezer",
};

static int span_is(struct span s, const char *word)
{
    size_t len = strlen(word);
    return s.len == len && !memcmp(s.at, word, len);
}

/* Takes the part before the next `separator` off *rest; an empty span at *rest's end. */
static struct span span_cut(struct span *rest, char separator)
{
    const char *end = rest->len ? memchr(rest->at, separator, rest->len) : NULL;
    struct span part = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
    size_t skip = part.len + (end ? 1 : 0);

    rest->at += skip;
    rest->len -= skip;
    return part;
}

static int list_has(struct span list, const char *word)
{
    while (list.len)
        if (span_is(span_cut(&list, ','), word))
            return 1;
    return 0;
}

static uint64_t number_of(struct span s)
{
    uint64_t v = 0;
    for (size_t i = 0; i < s.len && s.at[i] >= '0' && s.at[i] <= '9'; i++)
        v = v * 10 + (uint64_t)(s.at[i] - '0');
    return v;
}

/* Copies an absolute path with its \ooo resolved. -1 when it is none or does not fit: a path cut
 * short would be another directory. */
static int path_decode(struct span s, char *out, size_t size)
{
    size_t len = 0;

    if (!s.len || s.at[0] != '/')
        return -1;

    for (size_t i = 0; i < s.len; i++) {
        unsigned c = (unsigned char)s.at[i];
        if (c == '\\') {
            if (s.len - i < 4)
                return -1;
            c = 0;
            for (int d = 1; d <= 3; d++) {
                if (s.at[i + (size_t)d] < '0' || s.at[i + (size_t)d] > '7')
                    return -1;
                c = c * 8 + (unsigned)(s.at[i + (size_t)d] - '0');
            }
            i += 3;
        }

        if (c == 0 || c > 255 || len + 1 >= size)
            return -1;
        out[len++] = (char)c;
    }

    out[len] = 0;
    return 0;
}

static int path_is_below(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    return !strncmp(path, dir, len) && (!path[len] || path[len] == '/');
}

static void consider(struct candidate *have, const struct candidate *found)
{
    if (found->rank > have->rank)
        *have = *found;
}

/* One line of the mount table. Anything that is not as above is passed over. */
static void scan_line(struct span line, struct candidate found[CGROUP_TREE_COUNT])
{
    struct candidate c = {0};

    c.id = number_of(span_cut(&line, ' '));
    uint64_t parent = number_of(span_cut(&line, ' '));
    span_cut(&line, ' ');
    struct span root = span_cut(&line, ' ');
    struct span path = span_cut(&line, ' ');
    struct span options = span_cut(&line, ' ');
    while (line.len && !span_is(span_cut(&line, ' '), "-"))
        ;
    struct span type = span_cut(&line, ' ');
    span_cut(&line, ' ');
    struct span super = span_cut(&line, ' ');

    if (!type.len || path_decode(path, c.path, sizeof c.path))
        return;

    /* A mount on a tree's own mount point hides that tree. */
    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (found[t].rank && parent == found[t].id && !strcmp(c.path, found[t].path))
            found[t].rank = 0;

    int v2 = span_is(type, "cgroup2");
    if ((!v2 && !span_is(type, "cgroup")) || path_decode(root, c.root, sizeof c.root))
        return;

    c.rank = 8;
    if (!list_has(options, "ro") && !list_has(super, "ro"))
        c.rank += RANK_WRITABLE;
    if (!strcmp(c.root, "/"))
        c.rank += RANK_WHOLE;
    if (path_is_below(c.path, "/sys/fs/cgroup"))
        c.rank += RANK_HOME;

    if (v2) {
        consider(&found[CGROUP_TREE_UNIFIED], &c);
        return;
    }

    for (int t = 0; t < CGROUP_TREE_COUNT; t++)
        if (controller_of_tree[t] && list_has(super, controller_of_tree[t]))
            consider(&found[t], &c);
}

static void scan(const char *mountinfo, struct candidate found[CGROUP_TREE_COUNT])
{
    struct span rest = {mountinfo, strlen(mountinfo)};
    while (rest.len)
        scan_line(span_cut(&rest, '\n'), found);
}

/* Which trees a layout is made of. In hybrid a controller without a v1 tree is in the v2 one. */
static enum cgroup_layout layout_of(const struct candidate found[CGROUP_TREE_COUNT])
{
    int v1 = found[CGROUP_TREE_MEMORY].rank || found[CGROUP_TREE_PIDS].rank ||
             found[CGROUP_TREE_CPU].rank;
    if (found[CGROUP_TREE_UNIFIED].rank)
        return v1 ? CGROUP_HYBRID : CGROUP_V2;
    return v1 || found[CGROUP_TREE_FREEZER].rank ? CGROUP_V1 : CGROUP_NONE;
}

static int tree_is_used(enum cgroup_layout layout, int tree)
{
    if (layout == CGROUP_V1)
        return tree != CGROUP_TREE_UNIFIED;
    if (layout == CGROUP_HYBRID)
        return tree != CGROUP_TREE_FREEZER;
    return tree == CGROUP_TREE_UNIFIED;
}

static void set_none(struct cgroup_mounts *m, const char *before, const char *what,
                     const char *after)
{
    *m = (struct cgroup_mounts){.layout = CGROUP_NONE};
    snprintf(m->why, sizeof m->why, "%s%.60s%s", before, what, after);
}

static void detect_in(const struct candidate found[CGROUP_TREE_COUNT], struct cgroup_mounts *ret)
{
    *ret = (struct cgroup_mounts){.layout = layout_of(found)};

    if (ret->layout == CGROUP_NONE) {
        set_none(ret, "no cgroup file system is mounted: mount -t cgroup2 none /sys/fs/cgroup", "",
                 "");
        return;
    }

    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        if (!tree_is_used(ret->layout, t))
            continue;
        if (!found[t].rank) {
            if (ret->layout == CGROUP_HYBRID)
                continue;
            set_none(ret, "cgroup v1 is mounted without its ", controller_of_tree[t],
                     " tree: mount it, or boot with systemd.unified_cgroup_hierarchy=1");
            return;
        }

        if (!(found[t].rank & RANK_WRITABLE)) {
            set_none(ret, "", found[t].path,
                     " is mounted read-only: a container needs a writable cgroup of its own "
                     "(docker run --privileged)");
            return;
        }

        memcpy(ret->path[t], found[t].path, sizeof ret->path[t]);
    }
}

void cgroup_detect(const char *mountinfo, const char *self_cgroup, struct cgroup_mounts *ret)
{
    (void)self_cgroup; /* only what runs without privilege must know where it is itself */
    struct candidate found[CGROUP_TREE_COUNT] = {0};
    scan(mountinfo, found);
    detect_in(found, ret);
}

/* The v2 line of /proc/self/cgroup: "0::/path". 0, or -1 when there is none of use. */
static int own_path(const char *self_cgroup, char *out, size_t size)
{
    struct span rest = {self_cgroup, strlen(self_cgroup)};

    while (rest.len) {
        struct span path = span_cut(&rest, '\n');
        struct span id = span_cut(&path, ':');
        struct span controllers = span_cut(&path, ':');
        if (!span_is(id, "0") || controllers.len)
            continue;

        if (!path.len || path.at[0] != '/' || path.len >= size)
            return -1;
        memcpy(out, path.at, path.len);
        out[path.len] = 0;
        /* ".." is how the kernel names what is outside of the cgroup namespace. */
        return strstr(out, "/..") || strstr(out, " (deleted)") ? -1 : 0;
    }

    return -1;
}

void cgroup_detect_own(const char *mountinfo, const char *self_cgroup, struct cgroup_mounts *ret)
{
    struct candidate found[CGROUP_TREE_COUNT] = {0};

    scan(mountinfo, found);
    detect_in(found, ret);
    if (ret->layout == CGROUP_NONE)
        return;

    if (ret->layout != CGROUP_V2) {
        set_none(ret,
                 "the limits are in cgroup v1 trees, which only root may use: run as root, or boot "
                 "with systemd.unified_cgroup_hierarchy=1",
                 "", "");
        return;
    }

    const struct candidate *c = &found[CGROUP_TREE_UNIFIED];
    const char *root = strcmp(c->root, "/") ? c->root : "";
    char own[256];

    if (own_path(self_cgroup, own, sizeof own) || !path_is_below(own, root)) {
        set_none(ret, "this process is in no cgroup below ", c->path,
                 ": run it as \"systemd-run --user --scope -p Delegate=yes ...\"");
        return;
    }

    char *below = own + strlen(root);
    size_t len = strlen(below);
    if (len >= strlen(LEAF) && !strcmp(below + len - strlen(LEAF), LEAF))
        below[len - strlen(LEAF)] = 0;
    if (!strcmp(below, "/"))
        below[0] = 0;

    /* The mount's own directory is in the path already. */
    char *path = ret->path[CGROUP_TREE_UNIFIED];
    size_t at = strcmp(path, "/") || !below[0] ? strlen(path) : 0;
    len = strlen(below);

    if (at + len >= sizeof ret->path[0]) {
        set_none(ret, "the path of this process's cgroup is too long below ", c->path, "");
        return;
    }

    memcpy(path + at, below, len + 1);
}

void cgroup_check_sockets(int v2, int has_file, const char *cmdline, char why[160])
{
    struct span rest = {cmdline, strcspn(cmdline, "\n")};
    why[0] = 0;
    while (rest.len) {
        struct span option = span_cut(&rest, ' ');
        if (span_is(span_cut(&option, '='), "cgroup.memory") && list_has(option, "nosocket")) {
            snprintf(why, 160, "socket buffers have no limit: boot without cgroup.memory=nosocket");
            return;
        }
    }

    if (!v2 && !has_file)
        snprintf(why, 160,
                 "socket buffers have no limit (no " CGROUP_SOCKETS_FILE
                 "): boot with systemd.unified_cgroup_hierarchy=1");
}

const char *cgroup_layout_name(enum cgroup_layout l)
{
    static const char *const names[] = {
        [CGROUP_NONE] = "none",
        [CGROUP_V1] = "v1",
        [CGROUP_HYBRID] = "hybrid",
        [CGROUP_V2] = "v2",
    };

    return (unsigned)l < sizeof names / sizeof *names ? names[l] : "none";
}
