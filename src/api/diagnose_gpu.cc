// SPDX-License-Identifier: Apache-2.0
#include "api/findings.h"
#include "gpu/driver.h"
#include "gpu/gds_findings.h"

namespace infercluster::api {
namespace {

Finding::Level level_of(gpu::GdsFinding::Level level) {
  switch (level) {
    case gpu::GdsFinding::Level::good:
      return Finding::Level::good;
    case gpu::GdsFinding::Level::note:
      return Finding::Level::note;
    case gpu::GdsFinding::Level::warning:
      return Finding::Level::warning;
  }
  return Finding::Level::warning;
}

Finding finding_of(const gpu::GdsFinding& found) {
  return {level_of(found.level), found.subject, found.state, found.consequence, found.remedy};
}

}  // namespace

void add_gpu_findings(std::vector<Finding>& findings) {
  for (const gpu::GdsFinding& found : gpu::gds_findings()) findings.push_back(finding_of(found));
}

void add_gds_mount_finding(const os::Mount& mount, std::vector<Finding>& findings) {
  if (!gpu::driver().ok()) return;  // said once, of the machine
  findings.push_back(finding_of(gpu::file_system_finding(mount.type, mount.options)));
}

}  // namespace infercluster::api
