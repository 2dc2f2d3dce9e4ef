/* kube_stream: an exec of Kubernetes as a stream of bytes. Its messages have a first byte that says
 * of what they are: 0 standard input, 1 standard output, 2 standard error, 3 how it ended, 4 the
 * size of a terminal; 255 ends one of them (v5.channel.k8s.io). */
#pragma once

#include "engine/stream.h"

struct pd_err;
struct ws_stream;

enum kube_channel {
    KUBE_STDIN = 0,
    KUBE_STDOUT = 1,
    KUBE_STDERR = 2,
    KUBE_ERROR = 3,
    KUBE_RESIZE = 4,
    KUBE_CLOSE = 255
};

/* `s` is the stream's own from now on, also when this fails. */
struct byte_stream *kube_stream_new(struct ws_stream *s, struct pd_err *e);

/* What a message is, pure: the channel and where its bytes begin; -1 when it is none. The words of
 * a KUBE_ERROR are put into `words` when they tell of a failure. */
int kube_message(const uint8_t *data, size_t len, const uint8_t **ret, size_t *ret_len);
/* The text of a message that says how an exec ended: "" when it ended well. */
void kube_read_end(const void *json, size_t len, char *words, size_t size);
