/* The OCI bundle that crun and runc run: what `runc spec` writes, with /bin/true instead of a
 * shell, no terminal, and the host's /usr as the contents of the root. No seccomp filter and no
 * limits: the peers do less than a jail does. */
#pragma once

static const char bundle_config[] =
    "{\"ociVersion\":\"1.0.2\",\"process\":{\"terminal\":false,\"user\":{\"uid\":0,\"gid\":0},"
    "\"args\":[\"/bin/true\"],\"env\":[\"PATH=/usr/sbin:/usr/bin:/sbin:/bin\"],\"cwd\":\"/\","
    "\"capabilities\":{\"bounding\":[\"CAP_AUDIT_WRITE\",\"CAP_KILL\",\"CAP_NET_BIND_SERVICE\"],"
    "\"effective\":[\"CAP_AUDIT_WRITE\",\"CAP_KILL\",\"CAP_NET_BIND_SERVICE\"],"
    "\"permitted\":[\"CAP_AUDIT_WRITE\",\"CAP_KILL\",\"CAP_NET_BIND_SERVICE\"]},"
    "\"rlimits\":[{\"type\":\"RLIMIT_NOFILE\",\"hard\":1024,\"soft\":1024}],"
    "\"noNewPrivileges\":true},\"root\":{\"path\":\"rootfs\",\"readonly\":true},"
    "\"hostname\":\"sandbox\",\"mounts\":["
    "{\"destination\":\"/usr\",\"type\":\"bind\",\"source\":\"/"
    "usr\",\"options\":[\"rbind\",\"ro\"]},"
    "{\"destination\":\"/proc\",\"type\":\"proc\",\"source\":\"proc\"},"
    "{\"destination\":\"/dev\",\"type\":\"tmpfs\",\"source\":\"tmpfs\",\"options\":[\"nosuid\","
    "\"strictatime\",\"mode=755\",\"size=65536k\"]},"
    "{\"destination\":\"/dev/"
    "pts\",\"type\":\"devpts\",\"source\":\"devpts\",\"options\":[\"nosuid\","
    "\"noexec\",\"newinstance\",\"ptmxmode=0666\",\"mode=0620\",\"gid=5\"]},"
    "{\"destination\":\"/dev/shm\",\"type\":\"tmpfs\",\"source\":\"shm\",\"options\":[\"nosuid\","
    "\"noexec\",\"nodev\",\"mode=1777\",\"size=65536k\"]},"
    "{\"destination\":\"/dev/mqueue\",\"type\":\"mqueue\",\"source\":\"mqueue\",\"options\":["
    "\"nosuid\",\"noexec\",\"nodev\"]},"
    "{\"destination\":\"/sys\",\"type\":\"sysfs\",\"source\":\"sysfs\",\"options\":[\"nosuid\","
    "\"noexec\",\"nodev\",\"ro\"]},"
    "{\"destination\":\"/tmp\",\"type\":\"tmpfs\",\"source\":\"tmpfs\",\"options\":[\"nosuid\","
    "\"nodev\",\"mode=1777\"]}],"
    "\"linux\":{\"resources\":{\"devices\":[{\"allow\":false,\"access\":\"rwm\"}]},"
    "\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"network\"},{\"type\":\"ipc\"},{\"type\":"
    "\"uts\"},"
    "{\"type\":\"mount\"}],\"maskedPaths\":[\"/proc/acpi\",\"/proc/asound\",\"/proc/kcore\","
    "\"/proc/keys\",\"/proc/latency_stats\",\"/proc/timer_list\",\"/proc/timer_stats\","
    "\"/proc/sched_debug\",\"/sys/firmware\",\"/proc/scsi\"],\"readonlyPaths\":[\"/proc/bus\","
    "\"/proc/fs\",\"/proc/irq\",\"/proc/sys\",\"/proc/sysrq-trigger\"]}}\n";
