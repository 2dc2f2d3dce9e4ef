/* How this works: the order is that of jail/cred.c, because each step needs something that a later
 * one takes away: bounding set, uid, permitted set, securebits with their locks, no_new_privs. The
 * difference is that nothing is sure to be there. Without SETUID, SETGID and KILL, or where groups
 * cannot be set (a user namespace of one id), init and its commands share a uid. Without SETPCAP
 * the bounding set stays as it is: no_new_privs, which needs nothing, keeps an exec from gaining
 * any of it, also one by uid 0.
 *
 * At the end it is looked at what is there: to be told is not enough. */
#include "init/shed.h"

#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BIT(cap)    (UINT64_C(1) << (cap))
#define CAPS_STRICT (BIT(CAP_SETUID) | BIT(CAP_SETGID) | BIT(CAP_KILL))
#define CAPS_DEV                                                                                   \
    (CAPS_STRICT | BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID))
#define CAP_LIMIT 63 /* the kernel answers EINVAL above its own highest */
#define UID_INIT  60000u

static int get_caps(uint64_t *ret_permitted, uint64_t *ret_inheritable)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {{0}};
    if (syscall(SYS_capget, &head, caps) < 0)
        return -1;

    *ret_permitted = caps[0].permitted | (uint64_t)caps[1].permitted << 32;
    *ret_inheritable = caps[0].inheritable | (uint64_t)caps[1].inheritable << 32;
    return 0;
}

static int set_caps(uint64_t permitted)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {
        {(uint32_t)permitted, (uint32_t)permitted, 0},
        {(uint32_t)(permitted >> 32), (uint32_t)(permitted >> 32), 0},
    };
    return (int)syscall(SYS_capset, &head, caps);
}

static int drop_bounding(uint64_t keep)
{
    for (int cap = 0; cap <= CAP_LIMIT; cap++)
        if (!(keep & BIT(cap)) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return errno == EINVAL ? 0 : -1;
    return 0;
}

static bool is_bounded(uint64_t keep)
{
    for (int cap = 0; cap <= CAP_LIMIT; cap++)
        if (!(keep & BIT(cap)) && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1)
            return false;
    return true;
}

/* A uid that no command has. Where there is no such uid (a user namespace with few of them) init
 * stays what it is, which is root, and no command may be that. Returns false when init and commands
 * cannot be told apart. */
static bool become_init(void)
{
    gid_t none = 0;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || syscall(SYS_setgroups, (size_t)0, &none) < 0)
        return false;

    if (syscall(SYS_setresgid, UID_INIT, UID_INIT, UID_INIT) == 0 &&
        syscall(SYS_setresuid, UID_INIT, UID_INIT, UID_INIT) == 0)
        return true;
    return geteuid() == 0 && getegid() == 0;
}

static int lock_securebits(bool dev)
{
    unsigned bits = SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |
                    SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE;
    if (!dev)
        bits |= SECBIT_NOROOT | SECBIT_KEEP_CAPS_LOCKED;
    return prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
}

static int check(uint64_t keep, struct pd_err *e)
{
    uint64_t permitted, inheritable;
    if (get_caps(&permitted, &inheritable) < 0)
        return pd_fail_sys(e, "read capabilities");
    if (permitted != keep || inheritable)
        return pd_fail(e, PD_DENIED, "capabilities %#llx and %#llx are left",
                       (unsigned long long)permitted, (unsigned long long)inheritable);
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        return pd_fail(e, PD_DENIED, "no_new_privs is not set");
    return 0;
}

int shed_power(bool dev, struct shed *ret, struct pd_err *e)
{
    uint64_t given, inheritable;
    if (get_caps(&given, &inheritable) < 0)
        return pd_fail_sys(e, "read capabilities");

    uint64_t keep = given & (dev ? CAPS_DEV : CAPS_STRICT);
    uint64_t lock = given & BIT(CAP_SETPCAP);
    bool apart = (given & CAPS_STRICT) == CAPS_STRICT;

    /* What an engine inherits to it, and what it has as a uid other than 0, are used up here. */
    if (set_caps(given) < 0)
        return pd_fail_sys(e, "choose init's capabilities");
    if (lock && drop_bounding(dev && apart ? keep : 0) < 0)
        return pd_fail_sys(e, "empty the capability bounding set");

    *ret = (struct shed){.unbounded = !is_bounded(dev && apart ? keep : 0),
                         .single = !apart || !become_init()};
    if (ret->single)
        keep = 0;

    /* A change of uid has cleared the effective set. */
    if (set_caps(keep | lock) < 0)
        return pd_fail_sys(e, "keep init's capabilities");
    if (lock && lock_securebits(dev && !ret->single) < 0)
        return pd_fail_sys(e, "lock securebits");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return pd_fail_sys(e, "set no_new_privs");
    if (set_caps(keep) < 0)
        return pd_fail_sys(e, "drop capabilities");
    return check(keep, e);
}
