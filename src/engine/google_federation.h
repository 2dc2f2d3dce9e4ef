/* google_federation: credentials of type external_account (workload identity federation), as their
 * file names them and as they are exchanged (RFC 8693): somebody else's token, which a file or an
 * address gives, becomes Google's, and with it maybe that of a service account. No calls are made
 * here. */
#pragma once

#include "engine/google_keys.h"

#define GOOGLE_SUBJECT          16384u /* somebody else's token, with its NUL */
#define GOOGLE_SOURCE_HEADERS   4u
#define GOOGLE_SOURCE_MAX       (64u << 10) /* what a file or an address gives */
#define GOOGLE_IMPERSONATE_MOST 43200u      /* s: what Google lets an organization allow */

/* "https://HOST[:PORT]" and what is asked for there. */
struct google_url {
    char base[288], target[1024];
};

struct google_federation {
    char audience[512], subject_type[129];
    char file[1024];          /* where the token is from: "" when an address gives it */
    struct google_url source; /* base "" when a file has it */
    char headers[GOOGLE_SOURCE_HEADERS][1024];
    unsigned header_count;
    char field[129];               /* of the JSON that it is in; "": it is all of the text */
    struct google_url token;       /* where it is exchanged */
    struct google_url impersonate; /* base "" when Google's token is used itself */
    unsigned life;                 /* s that a service account's token is asked for */
};

/* Is it a file of this type? What is not is google_account_read's. */
bool google_is_federation(const void *json, size_t len);
/* PD_INVALID says what is missing, or what there is that is not done: a program that prints tokens,
 * AWS's requests, certificates. Addresses are https, or this machine's, but for that of a token's
 * source, which may be a cloud's metadata server. */
int google_federation_read(const void *json, size_t len, struct google_federation *ret,
                           struct pd_err *e);
/* The token in what the source gave, without the line break at its end. PD_INVALID when there is
 * none; the text never has any of it. */
int google_subject_read(const struct google_federation *f, const void *data, size_t len,
                        char ret[GOOGLE_SUBJECT], struct pd_err *e);
/* What is sent to `token`, a form, and to `impersonate`, JSON. */
void google_federate_form(struct buf *out, const struct google_federation *f, const char *subject);
void google_impersonate_body(struct buf *out, const struct google_federation *f);
/* The answer of the latter; that of the former is google_token_read's. */
int google_impersonated_read(const void *json, size_t len, char ret[GOOGLE_TOKEN],
                             struct pd_err *e);
