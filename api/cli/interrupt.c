/* SPDX-License-Identifier: MIT */
#include "api/cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t pressed, resized;
static int told[2] = {-1, -1};

static void tell_signal(int number) {
  int kept = errno;
  if (number == SIGINT) pressed = 1;
  if (number == SIGWINCH) resized = 1;
  (void)!write(told[1], "", 1); /* full: it is told already */
  errno = kept;
}

void weft_interrupts_catch(void) {
  struct sigaction action = {.sa_handler = tell_signal};
  if (told[0] < 0 && pipe2(told, O_CLOEXEC | O_NONBLOCK) != 0)
    told[0] = told[1] = -1;               /* a wait ends by its time then */
  (void)sigaction(SIGINT, &action, NULL); /* cannot fail with these arguments */
  action.sa_flags = SA_RESTART;
  (void)sigaction(SIGWINCH, &action, NULL);
}

/* The pipe is emptied before the flags are read: a signal in between writes again. */
static bool take_flag(volatile sig_atomic_t *flag) {
  char bytes[64];
  while (read(told[0], bytes, sizeof bytes) > 0) continue;
  bool was = *flag != 0;
  *flag = 0;
  if ((pressed != 0 || resized != 0) && told[1] >= 0) (void)!write(told[1], "", 1); /* the other one is still told */
  return was;
}

bool weft_interrupts_take(void) {
  return take_flag(&pressed);
}

bool weft_interrupts_told(void) {
  return pressed != 0;
}

bool weft_resizes_take(void) {
  return take_flag(&resized);
}

int weft_interrupts_fd(void) {
  return told[0];
}
