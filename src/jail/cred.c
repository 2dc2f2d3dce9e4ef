/* How the process that will be init gives up its power. The order is the point: each step needs
 * something that a later one takes away. Inheritable set, bounding set, uid, permitted and ambient
 * sets, securebits with their locks, no_new_privs. */
#include "jail/cred.h"

#include "base/banned.h"
#include "jail/identity.h"
#include "jail/walls.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BIT(cap)    (UINT64_C(1) << (cap))
#define CAPS_STRICT (BIT(CAP_SETUID) | BIT(CAP_SETGID) | BIT(CAP_KILL))
#define CAPS_DEV                                                                                   \
    (CAPS_STRICT | BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID))
/* The highest capability number that the loop tries; the kernel answers EINVAL above its own. */
#define CAP_LIMIT 63

/* Every capability of a user namespace; what the kernel does not know it ignores. */
#define ALL_CAPS (BIT(CAP_LAST_CAP + 1) - 1)

static int set_caps(uint64_t effective, uint64_t inheritable)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {
        {(uint32_t)effective, (uint32_t)effective, (uint32_t)inheritable},
        {(uint32_t)(effective >> 32), (uint32_t)(effective >> 32), (uint32_t)(inheritable >> 32)},
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

static int no_new_privs(void)
{
    return wall_off("nnp") ? 0 : prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int cred_become_init(enum profile profile, const char **ret_step)
{
    uint64_t caps = profile == PROFILE_DEV ? CAPS_DEV : CAPS_STRICT;
    uint64_t bounding = profile == PROFILE_DEV ? CAPS_DEV : 0;

    if (wall_off("caps"))
        caps = bounding = ALL_CAPS;
    uint32_t uid = wall_off("initid") ? UID_USER : UID_INIT;

    /* Inheritable before bounding, because a capability that is not bounding cannot become
     * inheritable; bounding before the rest, because dropping from it needs CAP_SETPCAP. */
    *ret_step = "choose init's capabilities";
    if (set_caps(ALL_CAPS, caps) < 0)
        return -errno;

    *ret_step = "empty the capability bounding set";
    if (drop_bounding(bounding) < 0)
        return -errno;

    /* The uid changes with all capabilities kept; the set that remains is chosen afterwards. */
    *ret_step = "set securebits";
    if (prctl(PR_SET_SECUREBITS, SECBIT_KEEP_CAPS, 0, 0, 0) < 0)
        return -errno;

    *ret_step = "become init's uid";
    gid_t none = 0;
    if (syscall(SYS_setgroups, (size_t)0, &none) < 0 || syscall(SYS_setresgid, uid, uid, uid) < 0 ||
        syscall(SYS_setresuid, uid, uid, uid) < 0)
        return -errno;

    /* setresuid cleared the effective set; the permitted one is still full. */
    *ret_step = "keep init's capabilities";
    if (set_caps(caps | BIT(CAP_SETPCAP), caps) < 0)
        return -errno;
    for (int cap = 0; cap <= CAP_LIMIT; cap++)
        if (caps & BIT(cap) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) < 0)
            return -errno;

    /* strict: uid 0 means nothing. dev: root is root within the bounding set, and a change to
     * another uid drops everything, as programs expect. Either way it cannot be undone. */
    *ret_step = "lock securebits";
    unsigned bits =
        SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
    if (profile != PROFILE_DEV && !wall_off("caps"))
        bits |= SECBIT_NOROOT | SECBIT_KEEP_CAPS_LOCKED; /* setpriv of dev's root keeps them */
    if (prctl(PR_SET_SECUREBITS, bits | SECBIT_NO_CAP_AMBIENT_RAISE, 0, 0, 0) < 0)
        return -errno;

    *ret_step = "set no_new_privs";
    return no_new_privs() < 0 ? -errno : 0;
}

int cred_drop_all(const char **ret_step)
{
    *ret_step = "drop capabilities";
    if (drop_bounding(0) < 0 ||
        prctl(PR_SET_SECUREBITS, SECURE_ALL_BITS | SECURE_ALL_LOCKS, 0, 0, 0) < 0 ||
        set_caps(0, 0) < 0)
        return -errno;
    *ret_step = "set no_new_privs";
    return no_new_privs() < 0 ? -errno : 0;
}
