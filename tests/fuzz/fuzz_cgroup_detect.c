/* Input: a mount table, a NUL, a /proc/self/cgroup. Whatever it is, the answer must be one that the
 * rest of the module can act upon. */
#include "base/buf.h"
#include "jail/cgroup.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check(const struct cgroup_mounts *m, int own)
{
    int used = 0;
    for (int t = 0; t < CGROUP_TREE_COUNT; t++) {
        require(memchr(m->path[t], 0, sizeof m->path[t]) != NULL);
        require(!m->path[t][0] || m->path[t][0] == '/');
        used += m->path[t][0] != 0;
    }
    require(memchr(m->why, 0, sizeof m->why) != NULL);

    int unified = m->path[CGROUP_TREE_UNIFIED][0] != 0;
    int freezer = m->path[CGROUP_TREE_FREEZER][0] != 0;
    switch (m->layout) {
    case CGROUP_NONE:
        require(!used && m->why[0]);
        break;
    case CGROUP_V1:
        require(used == CGROUP_TREE_COUNT - 1 && !unified && !own);
        break;
    case CGROUP_HYBRID:
        require(used >= 2 && unified && !freezer && !own);
        break;
    case CGROUP_V2:
        require(used == 1 && unified);
        break;
    default:
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t table = cut ? (size_t)(cut - data) : size;
    auto_buf mountinfo = BUF_INIT(4 << 20);
    auto_buf prefixed = BUF_INIT(4 << 20);
    auto_buf self = BUF_INIT(4 << 20);
    buf_put(&mountinfo, data, table);
    buf_puts(&prefixed, "1 2 8:1 / /home rw - ext4 /dev/vda rw\n");
    buf_put(&prefixed, data, table);
    if (cut)
        buf_put(&self, cut + 1, size - table - 1);
    const char *mounts = buf_cstr(&mountinfo), *more = buf_cstr(&prefixed), *own = buf_cstr(&self);
    if (!mounts || !more || !own)
        return 0;

    /* What was in the result before does not matter, nor does a mount that is no cgroup. */
    struct cgroup_mounts a, b;
    memset(&a, 0x00, sizeof a);
    memset(&b, 0xff, sizeof b);
    cgroup_detect(mounts, own, &a);
    cgroup_detect(more, own, &b);
    check(&a, 0);
    require(a.layout == b.layout && !memcmp(a.path, b.path, sizeof a.path));

    cgroup_detect_own(mounts, own, &b);
    check(&b, 1);
    if (b.layout == CGROUP_V2) {
        const char *base = a.path[CGROUP_TREE_UNIFIED], *path = b.path[CGROUP_TREE_UNIFIED];
        require(a.layout == CGROUP_V2 && !strncmp(base, path, strlen(base)));
        require(!strstr(path + strlen(base), "/../"));
    }
    return 0;
}
