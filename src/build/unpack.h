/* unpack: an archive of files from outside into a build's sandbox: tar or tar.gz. It is unpacked
 * inside, by init's worker, which follows no link and no ".."; here pass only bytes, and what gzip
 * may become is bounded. */
#pragma once

struct job;
struct pd_err;

int unpack_file(struct job *j, int file, const char *to, struct pd_err *e);
