/* share: how many of the requests that the server serves at once may be one tenant's.
 *
 * A request may stay for as long as its client likes: a command, a stream, a body that comes byte
 * by byte. A party with many of them must leave places for the others, without a limit that would
 * bind when there are no others. So the limit moves: a tenant may have three times as many requests
 * as there are places free. One alone gets three quarters of all places, the next to come three
 * quarters of what is left; as requests end, parties that want many come to have the same number.
 *
 * Strangers, who have shown no key, are one party under the name "".
 *
 * Safe from any thread; no call waits. */
#pragma once

struct pd_err;
struct shares;

/* NULL when memory is out. */
struct shares *shares_new(void);
void shares_free(struct shares *s);

/* One more request, of `places` in all. After success shares_leave is due. PD_RATE: it has its
 * share. */
int shares_enter(struct shares *s, const char *tenant, unsigned places, struct pd_err *e);
void shares_leave(struct shares *s, const char *tenant);
