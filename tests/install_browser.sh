#!/bin/sh
# Installs Chromium, fonts and pdftotext where the system's package manager can (root on Debian or Ubuntu).
# Elsewhere it says so and the tests that need a browser are skipped with that reason.
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null 2>&1 && command -v pdftotext >/dev/null 2>&1; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing Chromium for the tests that look at pages" >&2
  apt-get update -qq >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium fonts-dejavu-core poppler-utils >/dev/null 2>&1 && exit 0
fi
echo "no Chromium or pdftotext here, and no right to install them: the tests that need them will be skipped" >&2
exit 0
