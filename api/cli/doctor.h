/* SPDX-License-Identifier: MIT */
/* What is wrong with a machine or with the options of `weft serve`, found without loading a model.
 *
 * * Law: doctor_look reads facts of the machine and changes nothing; doctor_judge_machine is a pure function of
 * these facts and of the options, so that every fault can be tested without having it; doctor_judge_options opens
 * the files and the address that the options name, as the server would, and closes them again. Each line says
 * what is so, and where that is wrong what to do. */
#ifndef WEFT_API_CLI_DOCTOR_H
#define WEFT_API_CLI_DOCTOR_H

#include "api/config.h"
#include "base/status.h"
#include "kernels/device.h"

typedef enum doctor_state {
  DOCTOR_OK,
  DOCTOR_LOOK, /* it serves, but not as it could */
  DOCTOR_BAD   /* it does not serve, or not by what the machine has for it */
} doctor_state;

enum { DOCTOR_LINES_MAX = 128, DOCTOR_CARDS_MAX = WEFT_DEVICES_MAX };

typedef struct doctor_line {
  const char *topic; /* one word, static */
  doctor_state state;
  char text[640];
} doctor_line;

typedef struct doctor_report {
  doctor_line line[DOCTOR_LINES_MAX];
  uint32_t n; /* lines of more files than there is room for are left out */
} doctor_report;

typedef struct doctor_card {
  char name[96], isa[32];
  uint64_t memory_bytes, free_bytes;
} doctor_card;

typedef struct doctor_facts {
  char processor[96], isa[32];
  uint32_t n_threads;
  double quota;         /* processors that the control group allows; 0: no limit */
  weft_error no_cpu;    /* why the backend does not open; "": it does */
  uint32_t n_on_bus;    /* NVIDIA cards on the PCI bus */
  bool has_driver;      /* its device file is there */
  int driver_fault;     /* errno of opening it for writing; 0: it opens */
  bool has_uvm;         /* the file of its unified memory is there, which no program computes without */
  bool is_guest;        /* WSL: the driver is the host's, and these files are others */
  char version[64];     /* of the driver; "": not told */
  char no_library[256]; /* why libcuda.so.1 cannot be loaded; "": it can */
  weft_error no_card;   /* why the first card does not open; "": it does, or nobody tried */
  doctor_card card[DOCTOR_CARDS_MAX];
  uint32_t n_cards;
  uint64_t memory_bytes, free_bytes; /* of the host; 0: not told */
  bool no_huge_pages;
  uint32_t n_descriptors, n_open;
  uint64_t threads_left; /* that the control group or the limit of the user allows; UINT64_MAX: no limit */
} doctor_facts;

/* root: what stands before paths of /sys, /proc and /dev; "" is this machine. */
void doctor_look(const char *root, const weft_config *config, doctor_facts *facts);
void doctor_judge_machine(const doctor_facts *facts, const weft_config *config, doctor_report *report);
/* facts: what memory there is. */
void doctor_judge_options(const doctor_facts *facts, const weft_config *config, doctor_report *report);

#endif
