/* Any bytes as the subprotocols that a WebSocket offers.
 *
 * Properties: a proof is a piece of the input behind "proof.", without blanks around it and without
 * a comma; there is one if and only if some element of the list begins so and has more; offered
 * again by itself it is found again. */
#include "api/login.h"

#include <stdlib.h>
#include <string.h>

#define MARK "proof."

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static int has_one(struct slice rest)
{
    struct slice one;
    while (http_list_next(&rest, &one))
        if (one.len > strlen(MARK) && !strncmp(one.at, MARK, strlen(MARK)))
            return 1;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice all = {(const char *)data, size}, proof = {NULL, 0}, again;
    bool found = login_protocol_proof(all, &proof);

    require(found == has_one(all));
    if (!found) {
        require(!proof.at);
        return 0;
    }

    require(proof.len && proof.at >= all.at + strlen(MARK) &&
            proof.at + proof.len <= all.at + all.len);
    require(!memcmp(proof.at - strlen(MARK), MARK, strlen(MARK)));
    require(!memchr(proof.at, ',', proof.len));

    struct slice alone = {proof.at - strlen(MARK), proof.len + strlen(MARK)};
    require(login_protocol_proof(alone, &again) && again.at == proof.at && again.len == proof.len);
    return 0;
}
