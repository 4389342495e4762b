// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpointer.h"
#include "checkpoint/checkpointer_impl.h"
#include "checkpoint/restore_together.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {

Result<std::optional<std::uint64_t>> Checkpointer::Impl::agree_on_latest() {
  const exchange::Deadline deadline = exchange::deadline_in(shared.options.call_deadline);
  IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
  const auto find = [this](const std::vector<std::string>&) -> Result<std::string> {
    IC_TRY(const auto newest, newest_whole_step(*shared.calls, shared.root, shared.options.stock_dcp));
    exchange::Writer out;
    out.number(newest.has_value() ? 1 : 0);
    out.number(newest.value_or(0));
    return out.take();
  };
  IC_TRY(const std::string text, ranks->decide("latest", "", find, deadline));
  exchange::Reader in(text);
  const bool found = in.number() == 1;
  const std::uint64_t step = in.number();
  if (!in.complete()) return Error(ErrorCode::corrupt, "what rank 0 said of the latest step is damaged");
  return found ? std::optional<std::uint64_t>(step) : std::nullopt;
}

Status Checkpointer::Impl::conclude(const Status& own) {
  IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
  const exchange::Deadline deadline = exchange::deadline_in(shared.options.write_deadline);
  if (!own.ok()) return ranks->abort(own.error(), 0, deadline);
  const auto all = ranks->gather("conclude", "", deadline);
  return all.ok() ? Status() : all.error();
}

Result<RestoreReport> Checkpointer::Impl::restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                                  const RestoreOptions& options) {
  const auto unpin = [this](auto report) {
    unpin_fast();
    return report;
  };
  if (shared.options.exchange->world() == 1) return unpin(checkpoint.restore(targets, options));
  IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
  return unpin(restore_together(checkpoint, targets, options,
                                {*ranks, exchange::deadline_in(shared.options.call_deadline),
                                 exchange::deadline_in(shared.options.write_deadline)}));
}

Result<std::optional<std::uint64_t>> Checkpointer::agree_on_latest() {
  return impl_->agree_on_latest();
}

Status Checkpointer::conclude(const Status& own) {
  return impl_->conclude(own);
}

Result<RestoreReport> Checkpointer::restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                            const RestoreOptions& options) {
  return impl_->restore(checkpoint, targets, options);
}

}  // namespace infercluster::checkpoint
