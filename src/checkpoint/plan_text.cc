// SPDX-License-Identifier: Apache-2.0
// A plan as rank 0 tells it: per group the writers of its pieces, in runs of equal ones.
#include "checkpoint/plan.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

std::string encode_writers(const Writers& writers) {
  exchange::Writer out;
  for (std::size_t begin = 0; begin < writers.size();) {
    std::size_t end = begin;
    while (end < writers.size() && writers[end] == writers[begin]) ++end;
    out.number(end - begin);
    out.number(writers[begin]);
    begin = end;
  }
  return out.take();
}

Error damaged() {
  return Error(ErrorCode::corrupt, "what rank 0 said of the plan is damaged")
      .with_hint("Do all ranks run the same version?");
}

}  // namespace

std::string encode_plan(const Plan& plan, std::span<const Group> groups) {
  exchange::Writer out;
  out.text(plan.hash);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    out.text(groups[i].digest);
    out.text(encode_writers(plan.writers[i]));
  }
  return out.take();
}

Result<OwnPlan> decode_plan(std::string_view bytes, std::string_view digest, std::size_t pieces) {
  exchange::Reader in(bytes);
  OwnPlan plan;
  plan.hash = in.text();
  while (!in.failed() && !in.complete()) {
    const bool own = in.text() == digest;
    exchange::Reader runs(in.text());
    while (own && !runs.complete()) {
      const std::uint64_t count = runs.number();
      const std::uint64_t writer = runs.number();
      if (runs.failed() || count > pieces - plan.writers.size()) return damaged();
      plan.writers.insert(plan.writers.end(), count, writer);
    }
    if (own && plan.writers.size() == pieces) return plan;
  }
  return damaged();
}

}  // namespace infercluster::checkpoint
