/* The templates of a server: those that the program carries inside, which are files of templates/,
 * and those of the operator's directory. */
#include "config/recipe.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* Symbol and name of each; src/meson.build has the same list. */
#define BUILT_IN(X)                                                                                \
    X(claude, "claude")                                                                            \
    X(cloud, "cloud")                                                                              \
    X(code_server, "code-server")                                                                  \
    X(codex, "codex")

#define DECLARE(symbol, name)                                                                      \
    extern const char recipe_##symbol##_start[] __attribute__((visibility("hidden")));             \
    extern const char recipe_##symbol##_end[] __attribute__((visibility("hidden")));
BUILT_IN(DECLARE)

#define ROW(symbol, name) {name, recipe_##symbol##_start, recipe_##symbol##_end},
static const struct {
    const char *name, *start, *end;
} built_in[] = {BUILT_IN(ROW)};

const struct recipe *recipes_find(const struct recipes *r, const char *name)
{
    for (unsigned i = 0; i < r->count; i++)
        if (!strcmp(r->at[i]->name, name))
            return r->at[i];
    return NULL;
}

void recipes_done(struct recipes *r)
{
    for (unsigned i = 0; i < r->count; i++)
        recipe_free(r->at[i]);
    r->count = 0;
}

/* Takes it: in place of one of the same name, or in order. */
static int put(struct recipes *r, struct recipe *t, struct pd_err *e)
{
    unsigned at = 0;

    while (at < r->count && strcmp(r->at[at]->name, t->name) < 0)
        at++;
    if (at < r->count && !strcmp(r->at[at]->name, t->name)) {
        recipe_free(r->at[at]);
        r->at[at] = t;
        return 0;
    }
    if (r->count == RECIPES_MAX) {
        recipe_free(t);
        return pd_fail(e, PD_INVALID, "there are more than %u templates", RECIPES_MAX);
    }

    memmove(r->at + at + 1, r->at + at, (r->count - at) * sizeof *r->at);
    r->at[at] = t;
    r->count++;
    return 0;
}

/* How long the name is in NAME.template; 0: it is another file. */
static size_t name_length(const char *file)
{
    size_t len = strlen(file), ending = strlen(RECIPE_ENDING);
    return len > ending && !strcmp(file + len - ending, RECIPE_ENDING) ? len - ending : 0;
}

static int read_one(int dir, const char *file, struct recipes *ret, struct pd_err *e)
{
    size_t len = name_length(file);
    char name[NAME_MAX + 1];
    struct stat st;

    snprintf(name, sizeof name, "%.*s", (int)len, file);
    auto_fd fd = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "read the template %.100s", file);
    if (!S_ISREG(st.st_mode))
        return pd_fail(e, PD_INVALID, "the template %.100s is not a regular file", file);

    char *text = malloc(RECIPE_TEXT_MAX + 1);
    if (!text)
        return pd_fail(e, PD_CAPACITY, "no memory for the template %.100s", file);
    size_t size = 0;
    ssize_t n;
    while (size <= RECIPE_TEXT_MAX && (n = read(fd, text + size, RECIPE_TEXT_MAX + 1 - size)) > 0)
        size += (size_t)n;

    struct recipe *t = recipe_parse(file, name, text, size, e);
    free(text);
    return t ? put(ret, t, e) : -1;
}

static int read_directory(const char *path, struct recipes *ret, struct pd_err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int bad = pd_fail_sys(e, "template_dir: open %.120s", path);
        fd_done(&fd);
        return bad;
    }

    int bad = 0;
    struct dirent *entry;
    while (bad == 0 && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && name_length(entry->d_name))
            bad = read_one(dirfd(dir), entry->d_name, ret, e);
    closedir(dir);
    return bad;
}

int recipes_load(const char *dir, struct recipes *ret, struct pd_err *e)
{
    struct recipes r = {0};

    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
        struct recipe *t = recipe_parse(built_in[i].name, built_in[i].name, built_in[i].start,
                                        (size_t)(built_in[i].end - built_in[i].start), e);
        if (!t || put(&r, t, e) < 0) {
            recipes_done(&r);
            return -1;
        }
    }

    if (*dir && read_directory(dir, &r, e) < 0) {
        recipes_done(&r);
        return -1;
    }
    *ret = r;
    return 0;
}
