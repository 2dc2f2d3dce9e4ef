/* The details of a file that stat does not have: where a link leads to at last, and the attributes
 * that clients have given it. They are found through one O_PATH descriptor, so that type, path and
 * attributes are of the same file. */
#include "init/path.h"
#include "init/worker.h"

#include "base/banned.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>

#define PREFIX    "user.e2b."
#define NAMES_MAX (64u << 10) /* as the kernel */

/* Attributes whose value is text; others are left out, as are those beyond RECORD_ATTRS_MAX. */
static void add_attr(struct buf *out, const char *self, const char *name)
{
    char value[RECORD_ATTRS_MAX];
    ssize_t len = getxattr(self, name, value, sizeof value);
    const char *told = name + strlen(PREFIX);
    if (len < 0 || memchr(value, 0, (size_t)len) ||
        out->len + strlen(told) + (size_t)len + 2 > RECORD_ATTRS_MAX)
        return;

    buf_put(out, told, strlen(told) + 1);
    buf_put(out, value, (size_t)len);
    buf_putc(out, 0);
}

static void find_attrs(struct buf *out, int fd)
{
    static char names[NAMES_MAX + 1];
    char self[PATH_OF_FD];
    path_of_fd(fd, self);
    ssize_t len = listxattr(self, names, NAMES_MAX);
    if (len <= 0)
        return;
    names[len] = 0;

    for (const char *name = names; name < names + len; name += strlen(name) + 1)
        if (!strncmp(name, PREFIX, strlen(PREFIX)) && name[strlen(PREFIX)])
            add_attr(out, self, name);
}

void worker_put_detail(struct worker_job *w, const struct stat *st, const char *path, int dir,
                       const char *name)
{
    char target[PATH_MAX] = "", end_path[PATH_MAX] = "", self[PATH_OF_FD];
    struct stat end = *st;
    auto_buf attrs = BUF_INIT(RECORD_ATTRS_MAX);
    int is_link = S_ISLNK(st->st_mode), leads = 1;

    if (is_link)
        path_readlink(dir, name, target);
    auto_fd fd = -1;
    if (is_link || S_ISREG(st->st_mode) || S_ISDIR(st->st_mode))
        fd = path_openat(dir, name, O_PATH | (is_link ? 0 : O_NOFOLLOW), 0, 0);

    if (is_link)
        leads = fd >= 0 && fstat(fd, &end) == 0;
    if (is_link && leads) {
        path_of_fd(fd, self);
        path_readlink(AT_FDCWD, self, end_path);
    }

    if (fd >= 0 && (S_ISREG(end.st_mode) || S_ISDIR(end.st_mode)))
        find_attrs(&attrs, fd);

    struct record_entry at_end = worker_entry(&end, "", NULL);
    struct record r = {.kind = RECORD_DETAIL,
                       .detail = {.entry = worker_entry(st, path, target),
                                  .end_type = leads ? at_end.type : ENTRY_TYPE_COUNT,
                                  .end_mode = leads ? at_end.mode : 0,
                                  .end_path = end_path,
                                  .attrs = attrs.data,
                                  .attrs_len = (uint32_t)attrs.len}};
    worker_put(w, &r);
}
