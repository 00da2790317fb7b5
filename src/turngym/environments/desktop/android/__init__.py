"""Android over adb: a real phone, or an emulator of the user's; see ``docs/desktop.md``."""
