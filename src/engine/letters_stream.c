/* How this works: the number of a call is one more than the highest that the bucket has, or that
 * this process has used (objects may be removed by a rule of the bucket), and is taken by making
 * its object, which only one can. Then a process is forked that has a bucket of its own, and copies
 * between it and a socket whose other end is the stream: calls to Google wait, and a stream must
 * not. It dies with the carrier that it belongs to.
 *
 * The key is drawn anew for each call: also where somebody has removed all objects, so that a
 * number comes twice, nothing is sealed with the same key and nonce. */
#include "engine/letters_stream.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "engine/gcs.h"
#include "engine/stream.h"
#include "link/proof.h"
#include "wire/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY_FILE  "letters.key"
#define CALL_WAIT (20 * NS_PER_S)
#define SILENCE   (25 * NS_PER_S) /* an end of a link says something every 15 s */
#define KEEP_FD   3

/* ---- keys ---- */

/* Made under another name and linked: a file that is there is complete, and the first counts. */
static void make_key(const char *path)
{
    char temporary[700];
    uint8_t key[LETTERS_KEY];

    random_bytes(key, sizeof key);
    snprintf(temporary, sizeof temporary, "%.600s.%d", path, (int)getpid());
    (void)unlink(temporary);
    auto_fd fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, key, sizeof key) == (ssize_t)sizeof key;
    bool linked __attribute__((unused)) =
        written && link(temporary, path) == 0; /* or it is there */
    (void)unlink(temporary);
    explicit_bzero(key, sizeof key);
}

int letters_root(const char *state_dir, const char *prefix, uint8_t ret[LETTERS_KEY],
                 struct pd_err *e)
{
    char path[640];
    uint8_t key[LETTERS_KEY];

    if ((size_t)snprintf(path, sizeof path, "%s/" KEY_FILE, state_dir) >= 600)
        return pd_fail(e, PD_INVALID, "the state directory's path is too long: %.100s", state_dir);
    for (int tries = 0; tries < 2; tries++) {
        auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && read(fd, key, sizeof key) == (ssize_t)sizeof key) {
            hmac_sha256(key, sizeof key, prefix, strlen(prefix), ret);
            explicit_bzero(key, sizeof key);
            return 0;
        }
        make_key(path);
    }
    return pd_fail(e, PD_INTERNAL, "the key for boxes by bucket cannot be kept in %.200s", path);
}

static bool crypt_letter(bool seal, const uint8_t key[LETTERS_KEY],
                         const uint8_t nonce[LETTERS_NONCE], uint8_t *data, size_t len,
                         uint8_t tag[LETTERS_TAG])
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    uint8_t rest[16];
    int n = 0;

    bool good = c && EVP_CipherInit_ex(c, EVP_chacha20_poly1305(), NULL, key, nonce, seal) == 1 &&
                (seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, LETTERS_TAG, tag) == 1) &&
                (!len || EVP_CipherUpdate(c, data, &n, data, (int)len) == 1) &&
                EVP_CipherFinal_ex(c, rest, &n) == 1 &&
                (!seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, LETTERS_TAG, tag) == 1);
    EVP_CIPHER_CTX_free(c);
    return good;
}

/* ---- the process that brings and fetches ---- */

static int get(void *context, const char *name, struct buf *out)
{
    return gcs_get(context, name, out, deadline_in(CALL_WAIT), NULL);
}

static int put(void *context, const char *name, const void *data, size_t len)
{
    return gcs_put(context, name, data, len, false, deadline_in(CALL_WAIT), NULL);
}

static void drop(void *context, const char *name)
{
    (void)gcs_remove(context, name, deadline_in(CALL_WAIT), NULL);
}

static _Noreturn void carry(struct letters *l, pid_t parent, letters_open *open,
                            const struct broker_config *c)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "paddock-letters", 0, 0, 0);
    if (getppid() != parent || dup2(l->near, KEEP_FD) < 0)
        _exit(1);
    syscall(SYS_close_range, KEEP_FD + 1, ~0u, 0);
    l->near = KEEP_FD;

    struct gcs *g = open(c);
    struct letters_store store = {
        .context = g, .get = get, .put = put, .drop = drop, .crypt = crypt_letter};
    l->store = &store;
    if (g)
        letters_carry(l);
    _exit(0);
}

/* ---- the stream ---- */

struct stream {
    struct byte_stream stream;
    int fd;
    pid_t pid;
};

static ssize_t result(ssize_t n)
{
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
}

static ssize_t stream_read(struct byte_stream *s, void *out, size_t size)
{
    return result(recv(((struct stream *)s)->fd, out, size, MSG_DONTWAIT));
}

static ssize_t stream_write(struct byte_stream *s, const void *data, size_t len)
{
    if (!len)
        return 0;
    return result(send(((struct stream *)s)->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static int stream_fd(const struct byte_stream *s)
{
    return ((const struct stream *)s)->fd;
}

/* What is still to be brought is said again by the link, over the next connection. */
static void stream_free(struct byte_stream *given)
{
    struct stream *s = (struct stream *)given;

    close(s->fd);
    (void)kill(s->pid, SIGKILL);
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(s);
}

static const struct byte_stream_kind kind = {
    .read = stream_read, .write = stream_write, .fd = stream_fd, .free = stream_free};

/* ---- calls ---- */

int letters_are_awaited(struct gcs *g, const char *prefix, const uint8_t root[LETTERS_KEY],
                        deadline t, struct pd_err *e)
{
    char name[LETTERS_NAME];
    uint8_t here[LETTERS_PROOF];
    auto_buf content = BUF_INIT(4096);

    letters_here_name(name, prefix);
    letters_here(root, here);
    int r = gcs_get(g, name, &content, t, e);
    return r <= 0 ? r : content.len == sizeof here && proof_equal(here, content.data);
}

struct highest {
    const char *prefix;
    uint32_t call;
};

static int note_call(void *context, const char *name, struct pd_err *e)
{
    struct highest *h = context;
    uint32_t call = letters_call_of(h->prefix, name);

    (void)e;
    h->call = call > h->call ? call : h->call;
    return 0;
}

/* The number of its last call is in *l, and then that of this one. */
static int call_box(struct gcs *g, struct letters *l, const uint8_t root[LETTERS_KEY], deadline t,
                    struct pd_err *e)
{
    struct highest h = {.prefix = l->prefix, .call = l->call};
    char name[LETTERS_NAME];
    uint8_t salt[LETTERS_SALT], content[LETTERS_CALL];

    if (gcs_list(g, l->prefix, note_call, &h, t, e) < 0)
        return -1;
    l->call = h.call + 1;
    random_bytes(salt, sizeof salt);
    letters_call(root, l->call, salt, content, l->key);
    letters_call_name(name, l->prefix, l->call);
    return gcs_put(g, name, content, sizeof content, true, t, e);
}

struct byte_stream *letters_stream(struct gcs *g, const char *prefix,
                                   const uint8_t root[LETTERS_KEY], uint32_t *last_call,
                                   letters_open *open, const struct broker_config *c, deadline t,
                                   struct pd_err *e)
{
    struct letters l = {
        .prefix = prefix, .call = *last_call, .out = LETTERS_DOWN, .silence = SILENCE};
    struct stream *s = calloc(1, sizeof *s);
    pid_t own = getpid();
    int pair[2];

    if (!s || call_box(g, &l, root, t, e) < 0) {
        if (!s)
            pd_fail(e, PD_CAPACITY, "no memory for a stream");
        free(s);
        return NULL;
    }
    *last_call = l.call;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        pd_fail_sys(e, "make a socket");
        free(s);
        return NULL;
    }

    auto_fd near __attribute__((unused)) = pair[1];
    l.near = pair[1];
    s->stream.kind = &kind;
    s->fd = pair[0];
    s->pid = fork();
    if (s->pid == 0)
        carry(&l, own, open, c);
    explicit_bzero(l.key, sizeof l.key);
    if (s->pid > 0)
        return &s->stream;
    pd_fail_sys(e, "fork");
    close(s->fd);
    free(s);
    return NULL;
}
