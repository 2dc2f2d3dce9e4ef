/* image: the reader of images, `paddock-remote image`, which runs in a jail.
 *
 *   plan                     a file that holds images (docker save, or a tar of an OCI layout) from
 *                            descriptor 0; writes a record of each (wire/image_record.h), with its
 *                            length in front as a u32
 *   unpack PACKING SIZE HEX  so many bytes from descriptor 0 whose sha256 is HEX ("-": not known);
 *                            writes what they unpack to
 *
 * Nothing that it says is believed: digests of what it writes are made outside. */
#pragma once

#include "base/buf.h"
#include "image/archive.h"

#include <stddef.h>
#include <stdint.h>

struct pd_err;

/* Appends the records of all images in the archive. PD_INVALID, PD_UNSUPPORTED. */
int plan_make(const struct archive *a, const char *machine, struct buf *out, struct pd_err *e);

/* Unpacks from `from` to `to`. */
int unpack_stream(int from, int to, uint32_t packing, uint64_t size, const char *hex,
                  struct pd_err *e);

/* The whole of it: the exit status. */
int image_main(int argc, char **argv);
