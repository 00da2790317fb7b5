# Process 1 of one desktop, inside its sandbox. Reads shell lines from stdin and says what ended.
# Arguments: width, height.
settings=/run/settings
config="$HOME/.config"
mkdir -p /tmp/.X11-unix /run/user /run/screen \
  "$config/gtk-3.0" "$config/libfm" "$config/openbox" "$config/pcmanfm/default"
cp $settings/gtk3.ini "$config/gtk-3.0/settings.ini"
cp $settings/gtk2.rc "$HOME/.gtkrc-2.0"
cp $settings/libfm.conf "$config/libfm/libfm.conf"
cp $settings/openbox.xml "$config/openbox/rc.xml"
cp $settings/pcmanfm.conf "$config/pcmanfm/default/pcmanfm.conf"
serve() { # name, command...: what the desktop cannot do without
  name=$1; shift
  ("$@" >"/run/$name.log" 2>&1; echo "lost $name") &
}
serve xvfb Xvfb :0 -screen 0 "$1x$2x24" -dpi 96 -fbdir /run/screen -nolisten tcp -ac -noreset \
  -displayfd 3 3>/run/screen/ready
serve bus dbus-daemon --config-file=$settings/bus.conf --nofork --nopidfile --print-address=3 \
  3>/run/user/ready
tries=0
until [ -s /run/screen/ready ] && [ -s /run/user/ready ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 6000 ]; then echo "failed no X server"; exit 1; fi
  sleep 0.01
done
serve registry /usr/libexec/at-spi2-registryd
serve openbox openbox --sm-disable
ulimit -c 0
ulimit -v 2000000
echo ready
launch() { # number, command...
  number=$1; shift
  ("$@" >"/run/app$number.log" 2>&1; echo "ended $number $?") &
}
while read -r line; do
  eval "$line"
  jobs >/dev/null  # collects what has ended: this is the process that orphans fall to
done
