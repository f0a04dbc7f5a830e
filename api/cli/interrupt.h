/* SPDX-License-Identifier: MIT */
/* The two signals of a program that talks to a person: Ctrl-C, and a terminal of another size.
 *
 * * Law: after weft_interrupts_catch neither ends the program; each is told once to who takes it, and
 * weft_interrupts_fd can be read from until both were taken, so that a wait for something else ends at once. */
#ifndef WEFT_API_CLI_INTERRUPT_H
#define WEFT_API_CLI_INTERRUPT_H

#include <stdbool.h>

void weft_interrupts_catch(void);
/* Ctrl-C was pressed since this was last asked. */
bool weft_interrupts_take(void);
/* The same, and it stays for who takes it. */
bool weft_interrupts_told(void);
/* The terminal got another size since this was last asked. */
bool weft_resizes_take(void);
int weft_interrupts_fd(void); /* for poll; -1: there is none */

#endif
