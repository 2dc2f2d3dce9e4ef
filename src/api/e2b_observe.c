#include "api/e2b.h"

#include "base/banned.h"

int envd_health(struct call *c, struct pd_err *e)
{
    (void)e;
    return call_empty(c);
}
