/* Records: one for each connection when it has ended, and for each question that was refused. They
 * are sent as they come; while there is no client, or it does not read, so many wait. */
#include "base/banned.h"
#include "gate/gate_state.h"

#include <errno.h>
#include <sys/epoll.h>

void record_add(struct gate *g, const struct gate_record *r)
{
    if (g->record_count == RECORDS_MAX) {
        g->records_lost++;
        return;
    }

    struct record_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return;
    entry->payload = BUF_INIT(WIRE_PAYLOAD_MAX);
    gate_record_encode(&entry->payload, r);
    if (entry->payload.overflow) {
        buf_done(&entry->payload);
        free(entry);
        return;
    }

    *g->records_last = entry;
    g->records_last = &entry->next;
    g->record_count++;
    records_send(g);
}

void record_flow(const struct flow *f, enum gate_result result, const char *why)
{
    char address[IP_TEXT];
    bool was_dialled = (f->state == FLOW_RELAY || f->state == FLOW_LENT) && !f->tunnel;

    ip_text(was_dialled ? f->dialled : f->to, address);
    struct gate_record r = {.id = f->sandbox->id,
                            .name = f->name,
                            .address = address,
                            .rule = f->rule,
                            .why = why ? why : "",
                            .kind = f->kind,
                            .result = result,
                            .port = f->port,
                            .up = f->up.bytes,
                            .down = f->down.bytes,
                            .usec = (clock_now() - f->began) / 1000,
                            .time = f->began_time};
    record_add(f->sandbox->gate, &r);
}

static void drop_first(struct gate *g)
{
    struct record_entry *entry = g->records;

    g->records = entry->next;
    if (!g->records)
        g->records_last = &g->records;
    g->record_count--;
    buf_done(&entry->payload);
    free(entry);
}

void records_send(struct gate *g)
{
    struct wire_head head = {.type = GATE_RECORD};

    while (g->records && g->client.fd >= 0) {
        int r = wire_send(g->client.fd, &head, &g->records->payload, NULL, 0, 0);
        if (r < 0) {
            /* It is told when there is room again; a client that is gone, by its end. */
            (void)watch_set(g, &g->client, EPOLLIN | (r == -EAGAIN ? EPOLLOUT : 0u));
            return;
        }
        drop_first(g);
    }
    if (g->client.fd >= 0)
        (void)watch_set(g, &g->client, EPOLLIN);
}

void records_free(struct gate *g)
{
    while (g->records)
        drop_first(g);
}
