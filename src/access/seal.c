/* How a sealed text is made: nonce, ciphertext and tag, in base64. The nonce is the beginning of a
 * MAC over context and text under a key of its own, so two texts share one only if they are the
 * same. The context is authenticated with it. */
#include "access/seal.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#define NONCE_LEN 12
#define TAG_LEN   16
#define MAC_LEN   32

static int read_key(int fd, const char *path, struct seal_key *ret, struct pd_err *e)
{
    uint8_t bytes[SEAL_KEY_LEN + 1];

    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n == SEAL_KEY_LEN)
        memcpy(ret->bytes, bytes, SEAL_KEY_LEN);
    explicit_bzero(bytes, sizeof bytes);
    return n == SEAL_KEY_LEN
               ? 0
               : pd_fail(e, PD_INTERNAL,
                         "%.150s has not %d bytes: put back the file that the secrets of this "
                         "server were sealed with",
                         path, SEAL_KEY_LEN);
}

/* It appears whole, and replaces nothing: two that make one at once have the same. */
static int make_key(const char *path, uid_t owner, gid_t group, struct pd_err *e)
{
    struct seal_key k;
    char temporary[4200];

    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary)
        return pd_fail(e, PD_INVALID, "the path of %.100s is too long", path);
    auto_fd fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return pd_fail_sys(e, "make %.150s", path);

    random_bytes(k.bytes, sizeof k.bytes);
    int bad = fd_write_all(fd, k.bytes, sizeof k.bytes) < 0 || fsync(fd) < 0 ||
              (owner != geteuid() && fchown(fd, owner, group) < 0) ||
              (link(temporary, path) < 0 && errno != EEXIST);
    int r = bad ? pd_fail_sys(e, "make %.150s", path) : 0;
    explicit_bzero(&k, sizeof k);
    (void)unlink(temporary);
    return r;
}

int seal_key_load(const char *path, uid_t owner, gid_t group, struct seal_key *ret,
                  struct pd_err *e)
{
    if (access(path, F_OK) < 0 && errno == ENOENT && make_key(path, owner, group, e) < 0)
        return -1;
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? pd_fail_sys(e, "open %.150s", path) : read_key(fd, path, ret, e);
}

/* HMAC-SHA256 over the purpose, a NUL, and the bytes. */
static int mac(const struct seal_key *k, const char *purpose, const void *data, size_t len,
               uint8_t ret[MAC_LEN])
{
    auto_buf message = BUF_INIT(1u << 20);

    buf_put(&message, purpose, strlen(purpose) + 1);
    buf_put(&message, data, len);
    int good = !message.overflow &&
               HMAC(EVP_sha256(), k->bytes, SEAL_KEY_LEN, message.data, message.len, ret, NULL);
    if (message.data)
        explicit_bzero(message.data, message.len);
    return good ? 0 : -1;
}

int seal_derive(const struct seal_key *k, const char *purpose, const char *text, uint8_t ret[32])
{
    return mac(k, purpose, text, strlen(text), ret);
}

/* One pass of AES-256-GCM, either way. `tag` is written, or compared. */
static int cipher(const struct seal_key *k, int closing, const char *context,
                  const uint8_t nonce[NONCE_LEN], const uint8_t *in, size_t len, uint8_t *out,
                  uint8_t tag[TAG_LEN])
{
    uint8_t key[MAC_LEN];
    int n = 0, rest = 0;

    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int good = c && mac(k, "cipher", "", 0, key) == 0 &&
               EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce, closing) == 1 &&
               EVP_CipherUpdate(c, NULL, &n, (const uint8_t *)context, (int)strlen(context)) == 1 &&
               EVP_CipherUpdate(c, out, &n, in, (int)len) == 1 &&
               (closing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_LEN, tag) == 1) &&
               EVP_CipherFinal_ex(c, out + n, &rest) == 1 &&
               (!closing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_LEN, tag) == 1);
    EVP_CIPHER_CTX_free(c);
    explicit_bzero(key, sizeof key);
    return good ? 0 : -1;
}

int seal_close(const struct seal_key *k, const char *context, const void *data, size_t len,
               struct buf *out, struct pd_err *e)
{
    uint8_t full[MAC_LEN];
    auto_buf whole = BUF_INIT(1u << 20);
    struct buf said = BUF_INIT(1u << 20);

    buf_put(&said, context, strlen(context) + 1);
    buf_put(&said, data, len);
    int bad = said.overflow || mac(k, "nonce", said.data, said.len, full) < 0;
    if (said.data)
        explicit_bzero(said.data, said.len);
    buf_done(&said);

    uint8_t *room = buf_reserve(&whole, NONCE_LEN + len + TAG_LEN);
    if (bad || !room)
        return pd_fail(e, PD_CAPACITY, "no memory for a secret");
    memcpy(room, full, NONCE_LEN);
    if (cipher(k, 1, context, room, data, len, room + NONCE_LEN, room + NONCE_LEN + len) < 0)
        return pd_fail(e, PD_INTERNAL, "a secret could not be sealed");
    whole.len = NONCE_LEN + len + TAG_LEN;
    return base64_encode(out, whole.data, whole.len) < 0
               ? pd_fail(e, PD_TOO_LARGE, "the secrets are too long")
               : 0;
}

int seal_open(const struct seal_key *k, const char *context, const char *sealed, size_t len,
              struct buf *out, struct pd_err *e)
{
    auto_buf whole = BUF_INIT(1u << 20);

    if (base64_decode(&whole, sealed, len, NULL) != BASE64_GOOD || whole.len < NONCE_LEN + TAG_LEN)
        return pd_fail(e, PD_DENIED, "what is sealed is damaged");
    size_t size = whole.len - NONCE_LEN - TAG_LEN;
    uint8_t *room = buf_reserve(out, size + 1);
    if (!room)
        return pd_fail(e, PD_CAPACITY, "no memory for a secret");
    if (cipher(k, 0, context, whole.data, whole.data + NONCE_LEN, size, room,
               whole.data + NONCE_LEN + size) < 0) {
        explicit_bzero(room, size);
        return pd_fail(e, PD_DENIED, "what is sealed was sealed with another key");
    }
    out->len += size;
    return 0;
}
