/* The broker of docker and podman: makes a container for a box, waits at its door for init, and
 * gives init the socket of its owner. One request of the keeper at a time, each by blocking calls
 * of the engine's API with deadlines. */
#include "engine/broker.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/msg.h"

_Noreturn void docker_main(const struct broker_config *c, int sock, int init_fd)
{
    struct pd_err e;
    struct frame f = FRAME_INIT;
    (void)init_fd;

    while (wire_recv(sock, &f, DEADLINE_NONE, &e) > 0) {
        auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
        pd_fail(&e, PD_UNSUPPORTED, "the broker of %s has no requests yet",
                c->podman ? "podman" : "docker");
        msg_error_put(&out, &e);
        struct wire_head head = {.type = WIRE_ERROR, .id = f.head.id};
        wire_send(sock, &head, &out, NULL, 0, DEADLINE_NONE);
        frame_reset(&f);
    }
    _exit(0);
}
