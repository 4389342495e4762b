// SPDX-License-Identifier: Apache-2.0
// The public C++ API of checkpoints. Errors are values (base/result.h); no exception leaves it.
//
//   auto checkpointer = infercluster::checkpoint::Checkpointer::open("/lustre/run", {});
//   auto save = (*checkpointer)->save(100, state, {});        // the state may be changed from here on
//   Status durable = (*save)->wait();                         // it outlives the machine's power from here on
//   auto saved = infercluster::checkpoint::open_at("/lustre/run", 100);
//   auto report = (*saved)->restore(targets, {});
#pragma once

#include "checkpoint/checkpointer.h"
#include "checkpoint/part_saver.h"
#include "checkpoint/restore.h"
#include "checkpoint/restore_together.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/staging_pool.h"
#include "exchange/callback_store.h"
#include "exchange/directory_store.h"
#include "exchange/exchange.h"
#include "infercluster/checkpoint_tools.h"
