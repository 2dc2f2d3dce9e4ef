/* Messages that wait: a list in the order of their numbers. */
#include "link/link_state.h"

#include "base/banned.h"

#include <stdlib.h>
#include <string.h>

int notes_add(struct notes *n, uint64_t number, const void *payload, size_t len)
{
    struct note *note = malloc(sizeof *note + len);
    if (!note)
        return -1;

    note->next = NULL;
    note->number = number;
    note->len = len;
    memcpy(note->payload, payload, len);

    if (!n->first)
        n->last = &n->first;
    *n->last = note;
    n->last = &note->next;
    n->count++;
    n->bytes += len;
    return 0;
}

void notes_drop(struct notes *n, uint64_t number)
{
    while (n->first && n->first->number <= number) {
        struct note *note = n->first;
        n->first = note->next;
        n->count--;
        n->bytes -= note->len;
        free(note);
    }
}
