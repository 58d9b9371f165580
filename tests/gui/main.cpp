/// The application exists only while tests run: listing them needs no display and no Qt platform.

#include <gtest/gtest.h>

#include <QApplication>
#include <QStandardPaths>
#include <memory>

namespace {

class Application : public testing::Environment {
 public:
  Application(int& argc, char** argv) : argc_(argc), argv_(argv) {}
  void SetUp() override {
    ASSERT_TRUE(qEnvironmentVariableIsSet("QT_QPA_PLATFORM")) << "run it by ctest, or set QT_QPA_PLATFORM=offscreen";
    QStandardPaths::setTestModeEnabled(true);
    QCoreApplication::setApplicationName(QStringLiteral("moeplan-gui-tests"));
    QCoreApplication::setOrganizationName(QStringLiteral("moeplan"));
    app_ = std::make_unique<QApplication>(argc_, argv_);
  }
  void TearDown() override { app_.reset(); }

 private:
  int& argc_;
  char** argv_;
  std::unique_ptr<QApplication> app_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new Application(argc, argv));
  return RUN_ALL_TESTS();
}
