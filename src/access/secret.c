/* Secrets of the server: made at random on its first start, kept in the store, and used for MACs.
 * Each MAC has a purpose in its text, so that a token for one thing is none for another. */
#include "access/secret.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "store/store.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#define MESSAGE_MAX 512

int secret_load(struct store *store, const char *name, uint8_t ret[SECRET_LEN], struct pd_err *e)
{
    struct pd_err why = {0};
    uint8_t secret[SECRET_LEN];

    ptrdiff_t len = store->get_value(store, name, secret, sizeof secret, &why);
    if (len < 0 && why.code == PD_NOT_FOUND) {
        random_bytes(secret, sizeof secret);
        if (store->put_value(store, name, secret, sizeof secret, e) < 0)
            return -1;
    } else if (len < 0 && why.code != PD_TOO_LARGE) {
        if (e)
            *e = why;
        return -1;
    } else if (len != SECRET_LEN) {
        return pd_fail(e, PD_INTERNAL, "the value %s in the store has not %d bytes", name,
                       SECRET_LEN);
    }

    memcpy(ret, secret, sizeof secret);
    explicit_bzero(secret, sizeof secret);
    return 0;
}

int secret_mac(const uint8_t secret[SECRET_LEN], const char *purpose, const char *text, size_t len,
               uint8_t ret[MAC_LEN])
{
    uint8_t message[MESSAGE_MAX];

    size_t skip = strlen(purpose);
    if (skip + len > sizeof message)
        return -1;

    memcpy(message, purpose, skip);
    memcpy(message + skip, text, len);
    return HMAC(EVP_sha256(), secret, SECRET_LEN, message, skip + len, ret, NULL) ? 0 : -1;
}
