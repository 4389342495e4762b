// SPDX-License-Identifier: Apache-2.0
#include "cli/secret_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>

#include "nvme/auth_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::cli {
namespace {

constexpr const char* kHost = "nqn.2026-01.io.test:host";
constexpr const char* kOther = "nqn.2026-01.io.test:other";

class SecretFilesTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::string path = directory_.write(name, text);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  testing::TempDir directory_;
};

TEST_F(SecretFilesTest, AreReadWithTheLineEndAroundThem) {
  EXPECT_EQ(read_secret(file("a", std::string(nvme::kHostSecret03) + "\n")).value().bytes(), 64U);
  EXPECT_EQ(read_secret(file("b", nvme::kHostSecret01, 0440)).value().bytes(), 32U);
}

TEST_F(SecretFilesTest, ThatOthersMayReadAreRefused) {
  for (const mode_t mode : {mode_t{0604}, mode_t{0602}, mode_t{0644}, mode_t{0660}}) {
    const Result<nvme::Secret> secret = read_secret(file("open", nvme::kHostSecret01, mode));
    ASSERT_FALSE(secret.ok()) << mode;
    EXPECT_EQ(secret.error().code(), ErrorCode::permission);
    EXPECT_NE(secret.error().hint().find("chmod 600"), std::string::npos);
  }
}

TEST_F(SecretFilesTest, ThatAreNoneAreRefusedByName) {
  for (const std::string& text : {std::string(), std::string("secret\n"), std::string(100'000, 'A'),
                                  std::string(nvme::kHostSecret01) + "\n" + nvme::kHostSecret02}) {
    const Result<nvme::Secret> secret = read_secret(file("none", text));
    ASSERT_FALSE(secret.ok());
    EXPECT_EQ(secret.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(secret.error().to_string().find("none"), std::string::npos);
    EXPECT_FALSE(secret.error().hint().empty());
  }
  EXPECT_EQ(read_secret((directory_.path() / "absent").string()).error().code(), ErrorCode::not_found);
}

TEST_F(SecretFilesTest, OfAHostComeWithThoseOfItsTarget) {
  const std::string host = file("host", nvme::kHostSecret01);
  const std::string controller = file("controller", nvme::kControllerSecret02);
  EXPECT_FALSE(read_credentials("", "").value().has_value());
  EXPECT_FALSE(read_credentials(host, "").value()->controller.has_value());
  EXPECT_EQ(read_credentials(host, controller).value()->controller->bytes(), 48U);
  EXPECT_FALSE(read_credentials(host, (directory_.path() / "absent").string()).ok());
}

TEST_F(SecretFilesTest, OfATargetAreByHostOrOfAll) {
  const std::string one = file("one", nvme::kHostSecret01);
  const std::string two = file("two=", nvme::kHostSecret02);
  const std::string controller = file("controller", nvme::kControllerSecret03);
  const std::string other_controller = file("other", nvme::kControllerSecret02);
  target::Admission admission;
  const Status added = add_secrets({.hosts = {one, std::string(kHost) + "=" + two},
                                    .controllers = {controller, std::string(kHost) + "=" + other_controller}},
                                   admission);
  ASSERT_TRUE(added.ok()) << added.error().to_string();
  ASSERT_TRUE(admission.secret_of_others.has_value());
  EXPECT_EQ(admission.secret_of_others->host.bytes(), 32U);
  EXPECT_EQ(admission.secret_of_others->controller->bytes(), 64U);
  ASSERT_EQ(admission.secrets.size(), 1U);
  EXPECT_EQ(admission.secrets.at(kHost).host.bytes(), 48U);
  EXPECT_EQ(admission.secrets.at(kHost).controller->bytes(), 48U);
}

TEST_F(SecretFilesTest, OfATargetMustFitTogether) {
  const std::string one = file("one", nvme::kHostSecret01);
  const std::string of_host = std::string(kHost) + "=" + one;
  const std::string of_other = std::string(kOther) + "=" + one;
  const std::array wrong{
      SecretFiles{.hosts = {one, one}, .controllers = {}}, SecretFiles{.hosts = {of_host, of_host}, .controllers = {}},
      SecretFiles{.hosts = {}, .controllers = {one}}, SecretFiles{.hosts = {of_host}, .controllers = {of_other}}};
  for (const SecretFiles& files : wrong) {
    target::Admission admission;
    const Status added = add_secrets(files, admission);
    ASSERT_FALSE(added.ok());
    EXPECT_EQ(added.error().code(), ErrorCode::invalid_argument);
  }
  target::Admission admission;
  EXPECT_TRUE(add_secrets({.hosts = {of_host}, .controllers = {one}}, admission).ok());
  EXPECT_TRUE(admission.secrets.at(kHost).controller.has_value());
}

}  // namespace
}  // namespace infercluster::cli
