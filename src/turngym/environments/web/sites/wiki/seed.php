<?php
// Fills the wiki with the users and pages that the JSON file at WIKI_CONTENT tells. Run by seed.py.

use MediaWiki\MediaWikiServices;
use MediaWiki\Revision\SlotRecord;

require_once getenv( 'MW_INSTALL_PATH' ) . '/maintenance/Maintenance.php';

class FillWiki extends Maintenance {
	public function execute() {
		$content = json_decode( file_get_contents( getenv( 'WIKI_CONTENT' ) ), true );
		$GLOBALS['wikiNow'] = gmmktime( 9, 0, 0, 1, 5, 2026 );
		$services = MediaWikiServices::getInstance();
		$users = [];
		foreach ( $content['users'] as $name => $about ) {
			$user = User::createNew( $name, [ 'real_name' => '' ] );
			$user->changeAuthenticationData(
				[ 'username' => $name, 'password' => $about['password'], 'retype' => $about['password'] ]
			);
			$user->setToken( $about['token'] );
			$user->saveSettings();
			foreach ( $about['groups'] as $group ) {
				$services->getUserGroupManager()->addUserToGroup( $user, $group );
			}
			$users[$name] = $user;
		}
		foreach ( $content['edits'] as [ $name, $title, $text, $summary ] ) {
			$GLOBALS['wikiNow'] += 1260;
			$page = $services->getWikiPageFactory()->newFromTitle( Title::newFromText( $title ) );
			$updater = $page->newPageUpdater( $users[$name] );
			$updater->setContent( SlotRecord::MAIN, ContentHandler::makeContent( $text, $page->getTitle() ) );
			$updater->saveRevision( CommentStoreComment::newUnsavedComment( $summary ) );
			if ( !$updater->wasSuccessful() ) {
				$this->fatalError( "$title: " . $updater->getStatus()->getWikiText() );
			}
			DeferredUpdates::doUpdates();
		}
		foreach ( $content['watched'] as $title ) {
			$services->getWatchlistManager()->addWatchIgnoringRights(
				$users[$content['me']], Title::newFromText( $title )
			);
		}
	}
}

$maintClass = FillWiki::class;
require_once RUN_MAINTENANCE_IF_MAIN;
