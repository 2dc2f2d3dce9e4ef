/* rented_text: what the APIs of rented sandboxes have in common, as bytes. Pure.
 *
 * They are believed as far as JSON goes: strings are bounded, and checked before they become parts
 * of URLs, paths or headers. */
#pragma once

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

struct pd_err;

/* The port of a link in the machine; where `paddock-box start listen=` is told. Within the range
 * that Daytona forwards. */
#define RENTED_PORT 7022u

#define RENTED_ID    64u  /* of a sandbox there, with its NUL */
#define RENTED_TOKEN 512u /* of a header */

/* A URL: "https://HOST[:PORT]" and the path behind it, "" or beginning with "/" and not ending with
 * one. */
struct rented_url {
    char base[288], path[512];
};
/* https, or http to this machine itself: a credential goes there. PD_INVALID names the value.
 * `what` is the setting or the answer that has it. */
int rented_url_read(const char *what, const char *text, struct rented_url *ret, struct pd_err *e);
/* HOST[:PORT] of a name, as part of such a URL. */
bool rented_is_host(const char *text);

/* Is it of letters, digits and "-_", and not too long for an id that becomes a part of a path? */
bool rented_is_id(const char *text);
/* May it stand in a header? */
bool rented_is_token(const char *text);

/* ---- answers that are JSON ---- */

/* A value that is let go at the end of its block. */
void rented_json_done(json_t **j);
#define auto_json __attribute__((cleanup(rented_json_done))) json_t

/* The answer of `who` to `what`, an object or a list; NULL with PD_PROTOCOL. */
json_t *rented_json(const char *who, const char *what, const void *json, size_t len,
                    struct pd_err *e);
/* A text that must be of some form where it is; "" where it is not, is empty or null. -1 for
 * another, or one that does not fit into `size` with its NUL. */
int rented_json_text(char *out, size_t size, const json_t *j, bool (*fits)(const char *text));

/* ---- words ---- */

/* Copies the words of an answer for people: its JSON member message (or error, or detail), or the
 * beginning of the text; only what can be shown, without `secret`, at most `size` - 1 bytes. */
void rented_words(const void *data, size_t len, const char *secret, char *out, size_t size);
/* Fills *e from an answer that is none of those hoped for. `who` is the backend, `what` was tried,
 * `remedy` names the setting of the credential, `wait` is Retry-After or "". Always -1. */
struct rented_refusal {
    const char *who, *what, *remedy, *secret, *wait;
    int status;
    const void *body;
    size_t len;
};
int rented_refused(const struct rented_refusal *r, struct pd_err *e);
/* Seconds of a Retry-After, or `otherwise`; at most 3600. */
unsigned rented_wait_s(const char *text, unsigned otherwise);

/* Where a box is, for the carrier: "ID/LINK". PD_INVALID where it is not of that form. */
int rented_place_read(const char *place, char ret_id[RENTED_ID], char ret_link[33],
                      struct pd_err *e);

/* Multipart form data: one part with a file; then the end. The boundary is fixed and must not be in
 * the contents; `rented_form_fits` says whether that holds. */
#define RENTED_FORM_TYPE "Content-Type: multipart/form-data; boundary=paddock-form-5d1c7b0e9a2f4468"
bool rented_form_fits(const void *data, size_t len);
void rented_form_file(struct buf *out, const char *name, const char *filename, const void *data,
                      size_t len);
void rented_form_text(struct buf *out, const char *name, const char *text);
void rented_form_end(struct buf *out);
