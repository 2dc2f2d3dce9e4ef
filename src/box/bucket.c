/* How this works: the process waits for the file of the call behind the last that it took, from the
 * first on. When those behind that one are there, too, the last in the row counts, and those before
 * it were given up. Then it connects to the far end and copies, until the far end ends or there is
 * the next call. A number that is missing ends the row: no file of a call may be removed while the
 * box lives, or a process that begins anew finds none of them.
 *
 * A bucket that is mounted shows a file when it was closed; a file is written under the name that
 * it is to have, because such a mount has no rename that is one step. */
#include "box/bucket.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "box/join.h"
#include "box/key.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAUSE_LEAST (50 * NS_PER_MS)
#define PAUSE_MOST  NS_PER_S

int bucket_read(const char *path, struct bucket *ret, struct pd_err *e)
{
    const char *name = strrchr(path, '/');

    if (path[0] != '/' || !name || !name[1] || strlen(name + 1) >= LETTERS_PREFIX ||
        strlen(path) >= LETTERS_PREFIX || strstr(path, "/../"))
        return pd_fail(e, PD_INVALID, "bucket=%.60s: use /DIRECTORY/PREFIX", path);
    snprintf(ret->path, sizeof ret->path, "%s", path);
    return key_read_variable(SEAL_VARIABLE, ret->root, e);
}

#ifdef HAVE_BEARSSL

#include <bearssl.h>

bool bucket_can(void)
{
    return true;
}

static bool crypt_letter(bool seal, const uint8_t key[LETTERS_KEY],
                         const uint8_t nonce[LETTERS_NONCE], uint8_t *data, size_t len,
                         uint8_t tag[LETTERS_TAG])
{
    uint8_t made[LETTERS_TAG], wrong = 0;

    br_poly1305_ctmul_run(key, nonce, data, len, NULL, 0, made, br_chacha20_ct_run, seal);
    if (seal) {
        memcpy(tag, made, sizeof made);
        return true;
    }
    for (unsigned i = 0; i < LETTERS_TAG; i++)
        wrong |= made[i] ^ tag[i];
    return !wrong;
}

#else

bool bucket_can(void)
{
    return false;
}

static bool crypt_letter(bool seal, const uint8_t key[LETTERS_KEY],
                         const uint8_t nonce[LETTERS_NONCE], uint8_t *data, size_t len,
                         uint8_t tag[LETTERS_TAG])
{
    (void)seal, (void)key, (void)nonce, (void)data, (void)len, (void)tag;
    return false;
}

#endif

/* ---- files ---- */

static int get(void *context, const char *name, struct buf *out)
{
    auto_fd fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    (void)context;
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    for (;;) {
        uint8_t piece[32768];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0)
            return 1;
        if (n < 0 || buf_put(out, piece, (size_t)n) < 0)
            return -1; /* or it is longer than a letter may be */
    }
}

static int put(void *context, const char *name, const void *data, size_t len)
{
    auto_fd fd =
        open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

    (void)context;
    if (fd < 0)
        return -1;
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const uint8_t *)data + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at += (size_t)n;
    }
    return close(fd_take(&fd)) < 0 ? -1 : 0; /* a mount stores it here, and says if it could not */
}

static void drop(void *context, const char *name)
{
    (void)context;
    (void)unlink(name);
}

static const struct letters_store store = {
    .get = get, .put = put, .drop = drop, .crypt = crypt_letter};

/* ---- calls ---- */

static void follow(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(0);
}

/* Is there such a call, and what is the key of its letters? */
static bool read_call(const struct bucket *b, uint32_t call, uint8_t ret_key[LETTERS_KEY])
{
    char name[LETTERS_NAME];
    auto_buf content = BUF_INIT(4096);

    letters_call_name(name, b->path, call);
    return get(NULL, name, &content) > 0 &&
           letters_call_read(b->root, call, content.data, content.len, ret_key);
}

static void carry(const struct bucket *b, uint32_t call, const uint8_t key[LETTERS_KEY])
{
    auto_fd near = join_connect();
    struct letters l = {.store = &store,
                        .prefix = b->path,
                        .call = call,
                        .out = LETTERS_UP,
                        .near = near,
                        .follows = true};

    if (near < 0)
        return;
    memcpy(l.key, key, sizeof l.key);
    letters_carry(&l);
    explicit_bzero(l.key, sizeof l.key);
}

void bucket_run(const struct bucket *b, int parent)
{
    uint8_t here[LETTERS_PROOF], key[LETTERS_KEY];
    char name[LETTERS_NAME];
    uint64_t pause = PAUSE_LEAST;

    follow(parent);
    (void)signal(SIGPIPE, SIG_IGN);
    letters_here(b->root, here);
    letters_here_name(name, b->path);
    while (put(NULL, name, here, sizeof here) < 0)
        poll(NULL, 0, deadline_poll_ms(deadline_in(PAUSE_MOST)));

    for (uint32_t call = 0; call < UINT32_MAX - 1;) {
        uint32_t before = call;
        while (read_call(b, call + 1, key))
            call++;
        if (call != before) {
            carry(b, call, key);
            explicit_bzero(key, sizeof key);
            pause = PAUSE_LEAST;
        }
        poll(NULL, 0, deadline_poll_ms(deadline_in(pause)));
        pause = pause * 2 < PAUSE_MOST ? pause * 2 : PAUSE_MOST;
    }
    _exit(1);
}
