/* registry_text: what registries say outside of images: challenges, tokens, where else to go. Pure.
 *
 * They are strangers' texts. What is handed out here has its bounds, has no bytes that could end a
 * header, and is an address only if it is one of http or https. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct pd_err;

#define REGISTRY_URL_MAX   4096u
#define REGISTRY_TOKEN_MAX 16384u

/* "https://HOST[:PORT]" and the rest, which begins with a slash. */
struct registry_url {
    char base[512];
    char target[REGISTRY_URL_MAX];
};
/* Reads an absolute address, or one that begins with a slash and means the server `base`. No user
 * in it, no fragment, printable characters alone. PD_PROTOCOL names it. */
int registry_url_read(const char *text, const char *base, struct registry_url *ret,
                      struct pd_err *e);

/* How a registry wants to be asked, of its header WWW-Authenticate. */
enum challenge_kind { CHALLENGE_NONE, CHALLENGE_BASIC, CHALLENGE_BEARER };
struct challenge {
    enum challenge_kind kind;
    char realm[REGISTRY_URL_MAX]; /* of a bearer: whom to ask for a token */
    char service[256];            /* "": not said */
};
/* One challenge. PD_PROTOCOL: neither kind, a bearer without a realm, or not the form of one. */
int challenge_read(const char *header, struct challenge *ret, struct pd_err *e);

/* The token of an answer in JSON: `token` or `access_token`. PD_PROTOCOL when there is none. */
int token_read(const void *json, size_t len, char ret[REGISTRY_TOKEN_MAX + 1], struct pd_err *e);

/* The credentials for a registry in a file that `docker login` has written: base64 of
 * USER:PASSWORD, as a header has it; "" when it has none for this registry. PD_INVALID. */
int credentials_read(const void *json, size_t len, const char *registry, char *ret, size_t size,
                     struct pd_err *e);
