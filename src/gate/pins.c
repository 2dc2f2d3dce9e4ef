/* Pins are a ring in the order in which they were made. It is small, and only a connection without
 * a name of its own looks through it, so it has no index. */
#include "gate/pins.h"

#include "base/banned.h"

struct pin {
    struct ip address;
    char *name;
};

struct pins {
    struct pin *ring;
    unsigned room, count, next;
};

struct pins *pins_new(void)
{
    return calloc(1, sizeof(struct pins));
}

void pins_free(struct pins *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->count; i++)
        free(p->ring[i].name);
    free(p->ring);
    free(p);
}

static bool is_pinned(const struct pins *p, struct ip a, const char *name)
{
    for (unsigned i = 0; i < p->count; i++)
        if (ip_equal(p->ring[i].address, a) && !strcmp(p->ring[i].name, name))
            return true;
    return false;
}

static bool make_room(struct pins *p)
{
    if (p->count < p->room || p->room == PINS_MAX)
        return true;

    unsigned room = p->room ? p->room * 2 : 16;
    struct pin *ring = realloc(p->ring, room * sizeof *ring);
    if (!ring)
        return false;
    p->ring = ring;
    p->room = room;
    return true;
}

void pins_add(struct pins *p, struct ip a, const char *name)
{
    if (is_pinned(p, a, name) || !make_room(p))
        return;
    char *copy = strdup(name);
    if (!copy)
        return;

    struct pin *pin = &p->ring[p->count < PINS_MAX ? p->count : p->next];
    if (p->count < PINS_MAX) {
        p->count++;
    } else {
        free(pin->name);
        p->next = (p->next + 1) % PINS_MAX;
    }
    *pin = (struct pin){.address = a, .name = copy};
}

const char *pins_find(const struct pins *p, struct ip a, unsigned *at)
{
    for (; *at < p->count; (*at)++) {
        /* From the latest to the oldest. */
        unsigned i = (p->next + p->count - 1 - *at) % p->count;
        if (ip_equal(p->ring[i].address, a)) {
            (*at)++;
            return p->ring[i].name;
        }
    }
    return NULL;
}
