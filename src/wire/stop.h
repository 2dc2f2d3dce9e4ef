/* stop: which limit, or whose order, ended a command. Every result names it (`stopped_by`) and
 * every metric counts it, so the list is part of the vocabulary that all layers share. The numbers
 * are stored in process rows: new ones go before STOP_COUNT. */
#pragma once

enum process_stop {
    STOP_NONE, /* it ended by itself */
    STOP_TIMEOUT,
    STOP_OOM,
    STOP_PIDS,
    STOP_DISK,
    STOP_OUTPUT,
    STOP_SYSCALL,
    STOP_KILLED,
    STOP_ABANDONED, /* nobody listened to it any more */
    STOP_SANDBOX,   /* its sandbox ended */
    STOP_COUNT
};
