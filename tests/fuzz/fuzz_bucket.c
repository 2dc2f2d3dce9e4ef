/* What a bucket has: the first byte says whether the rest is a letter, a list of objects, or a job
 * that mounts one. Properties: of a letter nothing comes out that is not all there and sealed; what
 * is read of a list or a job becomes a part of paths, and is of the form for that. */
#include "base/err.h"
#include "box/letters.h"
#include "engine/cloudrun_api.h"
#include "engine/gcs_api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX "p"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct letter {
    const uint8_t *data;
    size_t len;
    bool taken;
};

static void require(int holds)
{
    if (!holds)
        abort();
}

static int get(void *context, const char *name, struct buf *out)
{
    const struct letter *l = context;
    if (strcmp(name, PREFIX ".1.d.1") != 0 || l->taken)
        return -1; /* so that it ends */
    return buf_put(out, l->data, l->len) < 0 ? -1 : 1;
}

static int put(void *context, const char *name, const void *data, size_t len)
{
    (void)context, (void)name, (void)data;
    require(len >= 4 + LETTERS_TAG && len <= LETTERS_ROOM);
    return 0;
}

static void drop(void *context, const char *name)
{
    struct letter *l = context;
    (void)name;
    l->taken = true;
}

/* Whoever has the tag of zeros has the key. */
static bool open_zeros(bool seal, const uint8_t key[LETTERS_KEY],
                       const uint8_t nonce[LETTERS_NONCE], uint8_t *data, size_t len,
                       uint8_t tag[LETTERS_TAG])
{
    static const uint8_t zeros[LETTERS_TAG];
    (void)key, (void)data, (void)len;
    require(nonce[0] == (seal ? 'u' : 'd'));
    return seal || !memcmp(tag, zeros, sizeof zeros);
}

static void take_letter(const uint8_t *data, size_t len)
{
    struct letter letter = {.data = data, .len = len};
    const struct letters_store store = {
        .context = &letter, .get = get, .put = put, .drop = drop, .crypt = open_zeros};
    struct letters l = {
        .store = &store, .prefix = PREFIX, .call = 1, .out = LETTERS_UP, .silence = 1};
    uint8_t out[4096];
    int pair[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    l.near = pair[1];
    require(send(pair[0], "x", 1, 0) == 1); /* so that nothing waits */
    letters_carry(&l);
    ssize_t n = recv(pair[0], out, sizeof out, MSG_DONTWAIT);
    if (n > 0)
        require(letter.taken && (size_t)n + 4 + LETTERS_TAG <= len &&
                !memcmp(out, data + 4, (size_t)n));
    close(pair[0]);
    close(pair[1]);
}

static int check_name(void *context, const char *name, struct pd_err *e)
{
    (void)context, (void)e;
    require(!strncmp(name, PREFIX, 1) && strlen(name) < GCS_NAME && !strpbrk(name, "/?#%& \r\n"));
    (void)letters_call_of(PREFIX, name);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char next[GCS_NEXT], path[CLOUDRUN_MOUNT];

    if (!size)
        return 0;
    const void *rest = data + 1;
    switch (data[0] % 3) {
    case 0:
        take_letter(rest, size - 1);
        break;
    case 1:
        if (gcs_read_list(rest, size - 1, PREFIX, next, check_name, NULL, NULL) == 0)
            require(strlen(next) < sizeof next);
        break;
    default:
        if (cloudrun_read_mount(rest, size - 1, "b", "", path, NULL) == 0)
            require(path[0] == '/' && !strpbrk(path, " \"'=\r\n") && !strstr(path, ".."));
    }
    return 0;
}
