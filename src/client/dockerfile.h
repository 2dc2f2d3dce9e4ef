/* dockerfile: the part of a Dockerfile that a server can build, as the body of a build
 * (docs/builds.md): FROM, RUN, COPY, ENV, WORKDIR, USER, CMD and ENTRYPOINT. Pure.
 *
 * What is not of this part is refused with its line, and never left out in silence; but for LABEL,
 * EXPOSE, MAINTAINER, STOPSIGNAL and HEALTHCHECK, which would change nothing that is built. */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct pd_err;

#define DOCKERFILE_MAX   (1u << 20)
#define DOCKERFILE_STEPS 250u

/* A new object with `image`, `steps` and maybe `start`; NULL on failure. A step of COPY has its
 * sources in `sources` (an array), which the server does not know: who sends them makes one step of
 * each, and takes the member away. */
json_t *dockerfile_read(const char *text, size_t len, struct pd_err *e);
