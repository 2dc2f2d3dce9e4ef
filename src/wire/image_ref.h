/* image_ref: the name of an image: [REGISTRY[:PORT]/]REPOSITORY[:TAG][@sha256:DIGEST].
 *
 * Pure. As docker reads them: a first part with a dot or a colon, or "localhost", is a registry;
 * without one it is docker.io, where a name of one part stands for library/NAME. */
#pragma once

struct pd_err;

struct image_ref {
    char registry[256];
    char repository[256]; /* without the registry, with "library/" where that is meant */
    char tag[129];        /* "latest" when neither tag nor digest was given, else maybe "" */
    char digest[72];      /* "sha256:..." or "" */
};

/* PD_INVALID names the value and what is wrong with it. */
int image_ref_parse(const char *text, struct image_ref *ret, struct pd_err *e);
/* REGISTRY/REPOSITORY, which an engine takes as it is. */
#define IMAGE_NAME_MAX 513
void image_ref_name(const struct image_ref *r, char out[IMAGE_NAME_MAX]);
/* The whole of it, as an engine knows it: by digest where there is one. */
#define IMAGE_TEXT_MAX 720
void image_ref_text(const struct image_ref *r, char out[IMAGE_TEXT_MAX]);
