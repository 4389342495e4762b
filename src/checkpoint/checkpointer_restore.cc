// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpointer.h"
#include "checkpoint/checkpointer_impl.h"
#include "checkpoint/restore_together.h"

namespace infercluster::checkpoint {

Result<RestoreReport> Checkpointer::Impl::restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                                  const RestoreOptions& options) {
  if (shared.options.exchange->world() == 1) return checkpoint.restore(targets, options);
  IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
  return restore_together(checkpoint, targets, options,
                          {*ranks, exchange::deadline_in(shared.options.call_deadline),
                           exchange::deadline_in(shared.options.write_deadline)});
}

Result<RestoreReport> Checkpointer::restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                            const RestoreOptions& options) {
  return impl_->restore(checkpoint, targets, options);
}

}  // namespace infercluster::checkpoint
